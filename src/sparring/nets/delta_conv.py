"""Convolutions that skip the windows of an image that did not change.

Most of a game's image stands still: in Pong one window in ten of the first layer differs from what other images show at
the same place, and four in ten of the second. So the first layers run on a *table* of windows instead of whole images:

    table    [rows, channels]: a row for each window of a reference image, then one for each window that differs from it
    row_of   [1 + n, high, wide]: the table's row of each window, of the reference and of every image

The reference is the pixelwise median of a few of the images. Any image would do: it decides which windows are computed
alone, never their result. Results and gradients are those of ordinary convolutions up to the rounding of sums; a row
that many images share adds up their gradients. From the layer on at which most windows differ, whole images are passed.
An update of Pong takes half the time (docs/performance.md); `[train] delta_conv =
false` switches it off.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sparring.jit import released
from sparring.nets.shapes import after
from sparring.nets.torch_state import activate_in_place
from sparring.wire.chunk import Array
from sparring.wire.network import Conv, Input, Layer

MAX_CHANGED = 0.5  # of the windows: where more differ from the reference, ordinary convolutions are as fast
MIN_IMAGES = 8  # the reference has to be computed, too

_enabled = True  # in this process


def enable(on: bool) -> None:
    """Whether networks of this process use it: `[train] delta_conv`."""
    global _enabled
    _enabled = on


@dataclass(frozen=True, slots=True)
class Windows:
    """The table's row of each window of one layer, [1 + n, high, wide]: the reference comes first."""

    row_of: Array  # int32
    own: Array  # bool: the window has a row of its own, and does not share the reference's

    @property
    def worth_it(self) -> bool:
        """Whether so few windows differ that the table is faster than whole images."""
        return bool(self.own[1:].sum() <= MAX_CHANGED * self.own[1:].size)


def first_layers(
    layers: tuple[Layer, ...], leaf: Input, images: Tensor, params: Callable[[str], tuple[Tensor, Tensor]]
) -> tuple[Tensor, int]:
    """Outputs [n, channels, high, wide] of the first layers, and how many layers those are: 0, and `images`, where it
    does not pay.

    `images` are bytes [n, channels, height, width] as the game shows them; `params` gives a layer's weight and bias.
    """
    first = layers[0] if layers else None
    if not _enabled or len(images) < MIN_IMAGES or not _unpadded(first):
        return images, 0
    size = after(first, tuple(images.shape[1:]))
    x = channels_last(images).permute(0, 2, 3, 1).numpy()
    x = np.concatenate([reference(x)[None], x])
    windows = changed_windows(x, first, size[1:])
    if not windows.worth_it:
        return images, 0
    columns = torch.from_numpy(_views(x, first, size[1:])[windows.own]).flatten(1).float()
    table = _conv(first, params("image/0"), columns.sub_(leaf.shift).mul_(leaf.scale))
    done = 1
    for layer in layers[1:]:
        if not _unpadded(layer):
            break
        next_size = after(layer, size)
        following = windows_over(windows.own, layer.kernel, layer.stride, next_size[1:])
        if not following.worth_it:
            break
        rows = _views(windows.row_of[..., None], layer, next_size[1:])[following.own]
        table = _conv(layer, params(f"image/{done}"), _TableRows.apply(table, rows.reshape(-1)).reshape(len(rows), -1))
        windows, size, done = following, next_size, done + 1
    out: Tensor = _TableRows.apply(table, windows.row_of[1:].reshape(-1))
    return out.reshape(len(images), *size[1:], size[0]).permute(0, 3, 1, 2), done


class FirstConvolution(TorchFunctionMode):
    """While it is entered, a module's own convolution on `scaled`, which `images` became, skips windows, too."""

    def __init__(self, leaf: Input, images: Tensor, scaled: Tensor) -> None:
        super().__init__()
        self._leaf, self._images, self._scaled, self._version = leaf, images, scaled, scaled._version

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # As nn.Conv2d calls it, on images that nobody has changed in place.
        if func is torch.conv2d and len(args) == 7 and args[0] is self._scaled and args[0]._version == self._version:
            _, weight, bias, stride, *rest = args
            (*_, high, wide), step = weight.shape, max(stride) if isinstance(stride, tuple) else 0
            if high == wide and stride == (step, step) and rest == [(0, 0), (1, 1), 1]:
                layer = Conv(len(weight), high, step, activation="none")
                out, done = first_layers((layer,), self._leaf, self._images, lambda _: (weight, bias))
                if done:
                    return out
        return func(*args, **(kwargs or {}))


def channels_last(images: Tensor) -> Tensor:
    """The same bytes [n, channels, height, width] with their channels last in memory; five times as fast as torch."""
    if images.is_contiguous(memory_format=torch.channels_last) or not (images.is_contiguous() and images.is_cpu):
        return images.contiguous(memory_format=torch.channels_last)
    n, channels, height, width = images.shape
    out = torch.empty(n, height, width, channels, dtype=torch.uint8)
    _transpose(images.flatten(2).numpy(), out.flatten(1, 2).numpy())
    return out.permute(0, 3, 1, 2)


def reference(x: Array) -> Array:
    """The pixelwise median of five of the images [n, height, width, channels]."""
    a, b, c, d, e = x[np.linspace(0, len(x) - 1, 5).astype(np.intp)]
    low, high = np.minimum, np.maximum
    inner, outer = high(low(a, b), low(c, d)), low(high(a, b), high(c, d))  # neither least nor most of the four
    median: Array = high(low(inner, outer), low(high(inner, outer), e))
    return median


def changed_windows(x: Array, layer: Conv, size: tuple[int, ...]) -> Windows:
    """The first layer's windows of bytes [1 + n, height, width, channels], of which the first image is the reference.

    Images are compared in blocks of stride x stride pixels; a window sees `reach` blocks in each direction.
    """
    reach = (layer.kernel - 1) // layer.stride + 1
    blocks = np.zeros((len(x), size[0] + reach - 1, size[1] + reach - 1), np.bool_)
    _compare(x.reshape(*x.shape[:2], -1), layer.stride, layer.stride * x.shape[3], blocks)
    return windows_over(blocks, reach, 1, size)


def windows_over(changed: Array, kernel: int, stride: int, size: tuple[int, ...]) -> Windows:
    """The windows over what changed, [1 + n, high, wide]: a window differs where anything that it sees does."""
    own = np.zeros((len(changed), *size), np.bool_)
    for i, j in product(range(kernel), repeat=2):
        own |= changed[:, i : i + (size[0] - 1) * stride + 1 : stride, j : j + (size[1] - 1) * stride + 1 : stride]
    own[0] = True
    numbered = np.cumsum(own, dtype=np.int32).reshape(own.shape) - np.int32(1)
    return Windows(np.where(own, numbered, numbered[0]), own)


def _unpadded(layer: Layer | None) -> TypeGuard[Conv]:
    """Whether windows of equal pixels have equal results: with padding their place would matter, too."""
    return isinstance(layer, Conv) and layer.padding == 0


def _views(x: Array, layer: Conv, size: tuple[int, ...]) -> Array:
    """Every window of x [n, height, width, channels], not copied: [n, high, wide, kernel, kernel x channels]."""
    (n, _, _, channels), (image, line, pixel, _), kernel = x.shape, x.strides, layer.kernel
    shape = (n, *size, kernel, kernel * channels)
    steps = (image, line * layer.stride, pixel * layer.stride, line, pixel // channels)
    return np.lib.stride_tricks.as_strided(x, shape, steps, writeable=False)


def _conv(layer: Conv, params: tuple[Tensor, Tensor], columns: Tensor) -> Tensor:
    """The layer's outputs [rows, channels] for windows as rows of numbers."""
    weight, bias = params
    matrix = weight.permute(0, 2, 3, 1).reshape(len(weight), -1)  # no copy, as weights have their channels last
    return activate_in_place(layer.activation, functional.linear(columns, matrix, bias))


class _TableRows(torch.autograd.Function):
    """table[rows], [len(rows), channels]; gradients are added where they came from, in the order of `rows`."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Array) -> Tensor:
        ctx.rows, ctx.shape = rows, table.shape
        out = torch.empty(len(rows), table.shape[1])
        _take(table.detach().numpy(), rows, out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        table = torch.zeros(ctx.shape)
        _add(table.numpy(), ctx.rows, gradient.contiguous().numpy())
        return table, None


@released
def _transpose(planes: Array, out: Array) -> None:
    """Planes [n, channels, pixels] as [n, pixels, channels]."""
    n, channels, pixels = planes.shape
    for image in range(n):
        for channel in range(channels):
            for pixel in range(pixels):
                out[image, pixel, channel] = planes[image, channel, pixel]


@released
def _compare(x: Array, lines: int, length: int, changed: Array) -> None:
    """Mark each block, `lines` high and `length` bytes long, in which an image [height, bytes] differs from the first.

    At most the last block of a line is shorter; pixels beyond all blocks are in no window.
    """
    n, height, size = x.shape
    _, high, wide = changed.shape
    for image in range(1, n):
        for y in range(min(height, high * lines)):
            line, same, blocks = x[image, y], x[0, y], changed[image, y // lines]
            for block in range(wide):
                differs = np.uint8(0)
                for i in range(block * length, min((block + 1) * length, size)):
                    differs |= line[i] ^ same[i]
                blocks[block] |= differs != 0


@released
def _take(table: Array, rows: Array, out: Array) -> None:
    for i in range(len(rows)):
        for channel in range(table.shape[1]):
            out[i, channel] = table[rows[i], channel]


@released
def _add(table: Array, rows: Array, gradient: Array) -> None:
    for i in range(len(rows)):
        for channel in range(table.shape[1]):
            table[rows[i], channel] += gradient[i, channel]
