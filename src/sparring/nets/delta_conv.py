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
from dataclasses import dataclass, replace
from functools import partial
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

Params = Callable[[], tuple[Tensor, Tensor]]  # of one layer: weight and bias

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


@dataclass(frozen=True, slots=True)
class Table:
    """Outputs of one layer for all images, as a table of windows."""

    rows: Tensor  # [rows, channels]
    windows: Windows
    size: tuple[int, ...]  # channels, high, wide of the layer's output

    @classmethod
    def of_images(cls, layer: Conv, leaf: Input, images: Tensor, params: Params) -> "Table | None":
        """The first layer on bytes [n, channels, height, width] as the game shows them; None where it does not pay."""
        if not _enabled or len(images) < MIN_IMAGES:
            return None
        size = after(layer, tuple(images.shape[1:]))
        x = channels_last(images).permute(0, 2, 3, 1).numpy()
        x = np.concatenate([reference(x)[None], x])
        windows = changed_windows(x, layer, size[1:])
        if not windows.worth_it:
            return None
        columns = torch.from_numpy(_views(x, layer, size[1:])[windows.own]).flatten(1).float()
        return cls(_conv(layer, params(), columns.sub_(leaf.shift).mul_(leaf.scale)), windows, size)

    def through(self, layer: Conv, params: Params) -> "Table | None":
        """The next layer; None where it does not pay."""
        size = after(layer, self.size)
        windows = windows_over(self.windows.own, layer.kernel, layer.stride, size[1:])
        if not windows.worth_it:
            return None
        seen = _views(self.windows.row_of[..., None], layer, size[1:])[windows.own]
        columns = _TableRows.apply(self.rows, seen.reshape(-1)).reshape(len(seen), -1)
        return Table(_conv(layer, params(), columns), windows, size)

    def whole(self) -> Tensor:
        """The outputs as images, [n, channels, high, wide]."""
        out: Tensor = _TableRows.apply(self.rows, self.windows.row_of[1:].reshape(-1))
        channels, *place = self.size
        return out.reshape(-1, *place, channels).permute(0, 3, 1, 2)


def first_layers(
    layers: tuple[Layer, ...], leaf: Input, images: Tensor, params: Callable[[str], tuple[Tensor, Tensor]]
) -> tuple[Tensor, int]:
    """Outputs [n, channels, high, wide] of the first layers, and how many layers those are: 0, and `images`, where it
    does not pay.

    `images` are bytes [n, channels, height, width] as the game shows them; `params` gives a layer's weight and bias.
    """
    table, done = None, 0
    for layer in layers:
        own = partial(params, f"image/{done}")
        if not _unpadded(layer):
            break
        found = Table.of_images(layer, leaf, images, own) if table is None else table.through(layer, own)
        if found is None:
            break
        table, done = found, done + 1
    return (images if table is None else table.whole()), done


class LazyConvolutions(TorchFunctionMode):
    """While it is entered, a module's own first convolutions are computed as tables.

    The module is given a placeholder for its scaled images. An unpadded convolution of a placeholder gives another one,
    and so does an activation of that. A placeholder has the shape and type of the tensor that it stands for, and no
    content: any other function is given the tensor itself, which is computed then. A module that reaches the content
    otherwise (an autograd.Function of its own does) must not be run so: `ModuleNetwork` finds out by a trial.
    """

    def __init__(self, leaf: Input, images: Tensor, scaled: Callable[[], Tensor]) -> None:
        super().__init__()
        self._leaf, self._images, self._scaled = leaf, images, scaled
        self._tables: dict[int, Table] = {}  # by id of the placeholder
        self._computed: dict[int, Tensor] = {}
        self._placeholders: list[Tensor] = []  # so that no id is used twice
        self.given = self._placeholder(tuple(images.shape))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, first = dict(kwargs or {}), args[0] if args and isinstance(args[0], Tensor) else None
        if func in _DESCRIBE:
            return func(*args, **kwargs)
        if first is not None and self._waits(first):
            table = self._tables.get(id(first))
            if func is torch.conv2d and (found := self._convolved(table, *args[1:], **kwargs)) is not None:
                return self._placeholder((len(self._images), *found.size), found)
            if func in _ACTIVATIONS and table is not None:
                in_place = kwargs.pop("inplace", False)
                made = replace(table, rows=func(table.rows, *args[1:], **kwargs))
                if not in_place:
                    return self._placeholder(tuple(first.shape), made)
                self._tables[id(first)] = made
                return first
        return func(*self._contents(args), **{name: self._contents(value) for name, value in kwargs.items()})

    def _convolved(self, table: Table | None, *given: Any, **named: Any) -> Table | None:
        """As nn.Conv2d calls it, of square windows without padding, dilation or groups; None otherwise."""
        if named or len(given) != 6 or given[1] is None or given[3:] != ((0, 0), (1, 1), 1):
            return None
        weight, bias, stride, *_ = given
        (*_, high, wide), step = weight.shape, max(stride) if isinstance(stride, tuple) else 0
        if high != wide or stride != (step, step):
            return None
        layer = Conv(len(weight), high, step, activation="none")
        if table is None:
            return Table.of_images(layer, self._leaf, self._images, lambda: (weight, bias))
        return table.through(layer, lambda: (weight, bias))

    def _placeholder(self, shape: tuple[int, ...], table: Table | None = None) -> Tensor:
        made = torch.zeros(()).expand(shape)
        self._placeholders.append(made)
        if table is not None:
            self._tables[id(made)] = table
        return made

    def _waits(self, one: Tensor) -> bool:
        """Whether it is a placeholder whose tensor was not computed yet."""
        return id(one) not in self._computed and (one is self.given or id(one) in self._tables)

    def _contents(self, one: Any) -> Any:
        """The same with the tensors in the place of placeholders."""
        if type(one) in (tuple, list):
            return type(one)(self._contents(part) for part in one)
        if not isinstance(one, Tensor):
            return one
        if self._waits(one):
            table = self._tables.get(id(one))
            self._computed[id(one)] = self._scaled() if table is None else table.whole()
        return self._computed.get(id(one), one)


# What a placeholder answers itself, and activations of each number alone.
_DESCRIBE = frozenset(
    (Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__)
    + tuple(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cuda", "layout"))
)
_ACTIVATIONS = frozenset(
    (torch.relu, torch.tanh, torch.sigmoid, Tensor.relu, Tensor.tanh, Tensor.sigmoid)
    + (functional.relu, functional.elu, functional.gelu, functional.leaky_relu, functional.silu, functional.tanh)
)


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
