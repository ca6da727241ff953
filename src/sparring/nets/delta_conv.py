"""Convolutions of pictures in which little moves: a window that shows what it always shows is passed once for all.

Most of a game's picture stands still: in Pong one window in ten of the first layer differs from what the same place
shows in other pictures, and four in ten of the second. So the first layers pass a *table* instead of every picture:

    table   [rows, channels]: a row for each window of the reference, then one for each window that differs from it
    place   [1 + n, high, wide]: the row of each window, of the reference and of every picture

The reference is the pixelwise median of a few of the pictures. Any picture would do: it says only which windows are
passed alone, never what they give. So results are those of ordinary convolutions but for the rounding of sums, and so
are gradients: a row that many pictures share collects theirs. From where most windows differ pictures are passed whole
(docs/decisions/0260-what-stands-still-is-passed-once.md).
"""

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sparring.jit import released
from sparring.nets.shapes import after
from sparring.nets.torch_layers import Pair, followed
from sparring.wire.chunk import Array
from sparring.wire.network import Conv, Input, Layer

MOST_MOVED = 0.5  # of the windows: where more differ from the reference, ordinary convolutions are as fast
LEAST_PICTURES = 8  # the reference has to be passed, too


@dataclass(frozen=True, slots=True)
class Windows:
    """Which row of a layer's table each window has."""

    place: Array  # int32 [1 + n, high, wide]
    rows: int  # of the table

    @property
    def few(self) -> bool:
        """Whether it pays to pass the table."""
        still = self.place[0].size
        return bool(self.rows - still <= MOST_MOVED * (self.place.size - still))


def first_layers(layers: tuple[Layer, ...], leaf: Input, seen: Tensor, pair: Pair) -> tuple[Tensor, int]:
    """What the first layers make of pictures, [n, channels, high, wide], and how many they are; none: 0.

    `seen` are bytes [n, channels, height, width] as the game shows them.
    """
    n, *shape = seen.shape
    first = layers[0] if layers else None
    if n < LEAST_PICTURES or not _plain(first):
        return seen, 0
    x = woven(seen).permute(0, 2, 3, 1).numpy()
    still = reference(x)
    windows = moved(x, still, first.kernel, first.stride)
    if windows is None:
        return seen, 0
    size = after(first, tuple(shape))
    weight, bias = pair("image/0")
    columns = _columns(x, still, windows, first, leaf)
    table = followed(first.activation, functional.linear(columns, _matrix(weight), bias))
    done = 1
    for layer in layers[1:]:
        if not _plain(layer):
            break
        size = after(layer, size)
        following = seen_by(windows, layer.kernel, layer.stride, size[1:])
        if not following.few:
            break
        weight, bias = pair(f"image/{done}")
        columns = _Gathered.apply(table, windows, following, layer.kernel, layer.stride)
        table = followed(layer.activation, functional.linear(columns, _matrix(weight), bias))
        windows, done = following, done + 1
    whole: Tensor = _Spread.apply(table, windows.place)
    return whole, done


def woven(pictures: Tensor) -> Tensor:
    """The same bytes [n, channels, height, width] with their channels last in memory; five times as fast as torch."""
    if pictures.is_contiguous(memory_format=torch.channels_last) or not (pictures.is_contiguous() and pictures.is_cpu):
        return pictures.contiguous(memory_format=torch.channels_last)
    n, channels, height, width = pictures.shape
    made = torch.empty(n, height, width, channels, dtype=torch.uint8)
    _weave(pictures.flatten(2).numpy(), made.flatten(1, 2).numpy())
    return made.permute(0, 3, 1, 2)


def reference(x: Array) -> Array:
    """The pixelwise median of five of the pictures, [height, width, channels]."""
    a, b, c, d, e = x[np.linspace(0, len(x) - 1, 5).astype(np.intp)]
    low, high = np.minimum, np.maximum
    inner, outer = high(low(a, b), low(c, d)), low(high(a, b), high(c, d))  # neither least nor most of the four
    middle: Array = high(low(inner, outer), low(high(inner, outer), e))
    return middle


def moved(x: Array, still: Array, kernel: int, stride: int) -> Windows | None:
    """The first layer's windows of pictures [n, height, width, channels]; None where too many differ."""
    n, height, width, channels = x.shape
    high, wide = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    word = np.dtype(f"u{np.gcd(stride * channels, 8)}")  # several bytes are compared at once
    if width * channels % word.itemsize:
        word = np.dtype("u1")
    place = np.empty((1 + n, high, wide), np.int32)
    words, same = (a.reshape(*a.shape[:-2], width * channels).view(word) for a in (x, still))
    per_block = stride * channels // word.itemsize
    rows = _compare(
        words, same, (kernel - 1) // stride + 1, stride, per_block, place, int(MOST_MOVED * n * high * wide)
    )
    return None if rows < 0 else Windows(place, rows)


def seen_by(before: Windows, kernel: int, stride: int, size: tuple[int, ...]) -> Windows:
    """The windows of the next layer: one differs from the reference's where any that it sees does."""
    place = np.empty((len(before.place), *size), np.int32)
    return Windows(place, _see(before.place, kernel, stride, place))


def _plain(layer: Layer | None) -> TypeGuard[Conv]:
    """Whether a layer's windows depend on what they show alone: padding would make a place matter."""
    return isinstance(layer, Conv) and layer.padding == 0


def _matrix(weight: Tensor) -> Tensor:
    """[channels, a window's numbers]; no copy, as weights have their channels last."""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)


def _columns(x: Array, still: Array, windows: Windows, layer: Conv, leaf: Input) -> Tensor:
    """Each row's window as numbers, scaled as the leaf says."""
    n, height, _, channels = x.shape
    columns = torch.empty(windows.rows, layer.kernel, layer.kernel * channels)
    lines, same = x.reshape(n, height, -1), still.reshape(height, -1)
    steps, scale = (layer.stride, layer.stride * channels), np.array((leaf.shift, leaf.scale), np.float32)
    _cut(lines, same, windows.place, steps, scale, columns.numpy())
    return columns.flatten(1)


class _Gathered(torch.autograd.Function):
    """The windows of a layer as rows of numbers, from the table before it; gradients are added where they came from."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, before: Windows, windows: Windows, kernel: int, stride: int) -> Tensor:
        ctx.made = before.place, windows.place, kernel, stride, table.shape
        columns = torch.empty(windows.rows, kernel**2 * table.shape[1])
        _windows(columns.numpy(), table.detach().numpy(), before.place, windows.place, kernel, stride, False)
        return columns

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        before, place, kernel, stride, shape = ctx.made
        table = torch.zeros(shape)
        _windows(gradient.contiguous().numpy(), table.numpy(), before, place, kernel, stride, True)
        return table, None, None, None, None


class _Spread(torch.autograd.Function):
    """Every picture's windows from the table, [n, channels, high, wide] with channels last in memory."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, place: Array) -> Tensor:
        ctx.made = place, table.shape
        whole = torch.empty(len(place) - 1, *place.shape[1:], table.shape[1])
        _pictures(whole.numpy(), table.detach().numpy(), place, False)
        return whole.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        place, shape = ctx.made
        table = torch.zeros(shape)
        _pictures(gradient.permute(0, 2, 3, 1).contiguous().numpy(), table.numpy(), place, True)
        return table, None


@released
def _weave(planes: Array, out: Array) -> None:
    """Planes [n, channels, pixels] as [n, pixels, channels]."""
    n, channels, pixels = planes.shape
    for picture in range(n):
        for channel in range(channels):
            for pixel in range(pixels):
                out[picture, pixel, channel] = planes[picture, channel, pixel]


@released
def _compare(x: Array, still: Array, reach: int, stride: int, per_block: int, place: Array, most: int) -> int:
    """Fill `place`; the table's rows, or -1 where more than `most` windows differ.

    Lines of words are compared block by block, a block being what a window moves by; a window sees `reach` of them
    in each direction.
    """
    n, height, words = x.shape
    high, wide = place.shape[1:]
    rows = 0
    blocks = np.ones((high + reach - 1, wide + reach - 1), np.bool_)  # all of the reference's windows have a row
    for picture in range(n + 1):
        for y in range(min(height, len(blocks) * stride) if picture else 0):
            line, same, differs = x[picture - 1, y], still[y], blocks[y // stride]
            if y % stride == 0:
                differs[:] = False
            for block in range(len(differs)):
                other = line[0] ^ line[0]
                for word in range(block * per_block, min((block + 1) * per_block, words)):
                    other |= line[word] ^ same[word]
                differs[block] |= other != 0
        for y in range(high):
            for along in range(wide):
                differs_here = False
                for i in range(reach):
                    for j in range(reach):
                        differs_here |= blocks[y + i, along + j]
                place[picture, y, along] = rows if differs_here else y * wide + along
                rows += differs_here
        if rows - high * wide > most:
            return -1
    return rows


@released
def _cut(x: Array, still: Array, place: Array, steps: tuple[int, int], scale: Array, out: Array) -> None:
    """Cut each row's window out of its picture: lines of bytes, which become numbers."""
    pictures, high, wide = place.shape
    down, along = steps
    shift, factor = scale
    kernel, length = out.shape[1:]
    for picture in range(pictures):
        lines = x[picture - 1] if picture else still
        for y in range(high):
            for i in range(wide):
                row = place[picture, y, i]
                if picture and row < high * wide:
                    continue
                for k in range(kernel):
                    seen, numbers = lines[y * down + k, i * along : i * along + length], out[row, k]
                    for j in range(length):
                        numbers[j] = (np.float32(seen[j]) - shift) * factor


@released
def _see(before: Array, kernel: int, stride: int, place: Array) -> int:
    """Fill `place` for the layer behind `before`; the table's rows."""
    pictures, high, wide = place.shape
    still = before.shape[1] * before.shape[2]
    rows = 0
    for picture in range(pictures):
        for y in range(high):
            for x in range(wide):
                last = 0
                for i in range(kernel):
                    for j in range(kernel):
                        last = max(last, before[picture, y * stride + i, x * stride + j])
                own = picture == 0 or last >= still
                place[picture, y, x] = rows if own else y * wide + x
                rows += own
    return rows


@released
def _copy(numbers: Array, row: Array, back: bool) -> None:
    """A row into numbers; `back`: numbers are added to the row."""
    if back:
        for c in range(len(row)):
            row[c] += numbers[c]
    else:
        for c in range(len(row)):
            numbers[c] = row[c]


@released
def _windows(columns: Array, table: Array, before: Array, place: Array, kernel: int, stride: int, back: bool) -> None:
    """Lay the rows of `table` that each window sees side by side in `columns`; `back`: add columns to those rows."""
    pictures, high, wide = place.shape
    channels = table.shape[1]
    for picture in range(pictures):
        for y in range(high):
            for x in range(wide):
                row = place[picture, y, x]
                if picture and row < high * wide:
                    continue
                for i in range(kernel):
                    for j in range(kernel):
                        first, seen = (i * kernel + j) * channels, before[picture, y * stride + i, x * stride + j]
                        _copy(columns[row, first : first + channels], table[seen], back)


@released
def _pictures(whole: Array, table: Array, place: Array, back: bool) -> None:
    """Fill every picture from its rows of `table`; `back`: add every picture to its rows, one after the other."""
    n, high, wide, _ = whole.shape
    for picture in range(n):
        for y in range(high):
            for x in range(wide):
                _copy(whole[picture, y, x], table[place[picture + 1, y, x]], back)
