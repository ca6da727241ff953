"""The same networks in NumPy: what actors and the gateway run.

Everything that can be done once is done when weights arrive: transposes, folded dueling heads, heads
that share a trunk side by side in one matrix. Convolutions gather their windows (im2col) with the
channels last, so that each copy is of whole rows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import Columns
from sparring.learn.layout import Shape, after, fit, flats, head_layer, image_shape, images, trunk_of, width
from sparring.wire.chunk import Array
from sparring.wire.network import Activation, Conv, Head, Input, Layer, NetworkSpec

_BLOCK_ROWS = 32  # of images: keeps the gathered windows near the cache

Step = Callable[[Array], Array]


class Forward:
    """A network with its weights, called with leaf name → [n, *shape]. Threads may share one."""

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, Array]) -> None:
        fit(spec, weights)
        self.spec = spec
        self._flats = [(leaf.name, _reader(leaf)) for leaf in flats(spec)]
        self._pictures = [(leaf.name, _channels_last(leaf)) for leaf in images(spec)]
        self._image: list[Step] = []
        if (shape := image_shape(spec)) is not None:
            self._image = _image_steps(spec.image, weights, shape)
        places = ("trunk", "value_trunk") if spec.separate_value else ("trunk",)
        self._branches = [_Branch.of(spec, weights, place) for place in places]

    def __call__(self, observation: Columns) -> dict[str, Array]:
        """Heads by name: float32 [n, units], and "value" as [n]."""
        try:
            parts = [read(observation[name]) for name, read in self._flats]
            if self._pictures:
                parts.insert(0, self._features(observation))
        except KeyError as missing:
            raise ConfigError(
                f"no observation leaf {missing}",
                where="network",
                do=f"Give {', '.join(x.name for x in self.spec.inputs)}",
            ) from None
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        out: dict[str, Array] = {}
        for branch in self._branches:
            x = joined
            for step in branch.steps:
                x = step(x)
            for name, columns in branch.heads:
                out[name] = x[:, columns]
        return out

    def _features(self, observation: Columns) -> Array:
        frames = [read(observation[name]) for name, read in self._pictures]
        x = frames[0] if len(frames) == 1 else np.concatenate(frames, axis=3)
        blocks = []
        for first in range(0, max(len(x), 1), _BLOCK_ROWS):
            block = x[first : first + _BLOCK_ROWS]
            for step in self._image:
                block = step(block)
            blocks.append(block)
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A trunk and the heads on it, as one matrix: each head is a slice of its columns, a number one column."""

    steps: list[Step]
    heads: list[tuple[str, slice | int]]

    @classmethod
    def of(cls, spec: NetworkSpec, weights: Mapping[str, Array], place: str) -> "_Branch":
        steps = [_dense_of(weights, f"{place}/{i}", layer.activation) for i, layer in enumerate(spec.trunk)]
        mine = [head for head in spec.heads if trunk_of(spec, head) == place]
        if not mine:
            return cls([], [])
        layers = [head_layer(head, weights) for head in mine]
        steps.append(_dense(np.concatenate([w for w, _ in layers]), np.concatenate([b for _, b in layers]), "none"))
        columns, first = [], 0
        for head in mine:
            columns.append((head.name, _columns(head, first)))
            first += head.units
        return cls(steps, columns)


def _columns(head: Head, first: int) -> slice | int:
    return first if head.name == "value" and head.units == 1 else slice(first, first + head.units)


def _reader(leaf: Input) -> Step:
    """Raw rows to float32 [n, width]."""
    size = width(leaf)
    shift, scale = np.float32(leaf.shift), np.float32(leaf.scale)
    if leaf.one_hot:
        choices = np.arange(leaf.one_hot)
        return lambda raw: (raw.astype(np.int64)[..., None] == choices).astype(np.float32).reshape(len(raw), size)
    if leaf.shift == 0.0 and leaf.scale == 1.0:
        return lambda raw: np.asarray(raw, np.float32).reshape(len(raw), size)
    return lambda raw: ((raw.astype(np.float32) - shift) * scale).reshape(len(raw), size)


def _channels_last(leaf: Input) -> Step:
    """Raw images to float32 [n, height, width, channels]."""
    shape = leaf.shape if len(leaf.shape) == 3 else (1, *leaf.shape)
    shift, scale = np.float32(leaf.shift), np.float32(leaf.scale)

    def read(raw: Array) -> Array:
        x = raw.reshape(len(raw), *shape).transpose(0, 2, 3, 1).astype(np.float32, order="C")
        if shift != 0:
            x -= shift
        if scale != 1:
            x *= scale
        return x

    return read


def _image_steps(layers: tuple[Layer, ...], weights: Mapping[str, Array], shape: Shape) -> list[Step]:
    steps: list[Step] = []
    for i, layer in enumerate(layers):
        if isinstance(layer, Conv):
            steps.append(_conv(layer, weights[f"image/{i}/weight"], weights[f"image/{i}/bias"], shape))
        else:
            if len(shape) == 3:
                steps.append(_flatten)
            steps.append(_dense_of(weights, f"image/{i}", layer.activation))
        shape = after(layer, shape)
    return [*steps, _flatten] if len(shape) == 3 else steps


def _conv(layer: Conv, weight: Array, bias: Array, shape: Shape) -> Step:
    channels, kernel, stride, pad = shape[0], layer.kernel, layer.stride, layer.padding
    _, high, wide = after(layer, shape)
    matrix = np.ascontiguousarray(weight.transpose(2, 3, 1, 0).reshape(-1, layer.channels))
    dense = _product(matrix, bias.copy(), layer.activation)

    def step(x: Array) -> Array:
        if pad:
            x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        n, (s0, s1, s2, s3) = len(x), x.strides
        windows = np.lib.stride_tricks.as_strided(
            x, (n, high, wide, kernel, kernel, channels), (s0, s1 * stride, s2 * stride, s1, s2, s3), writeable=False
        )
        return dense(windows.reshape(n * high * wide, len(matrix))).reshape(n, high, wide, layer.channels)

    return step


def _flatten(x: Array) -> Array:
    return x.transpose(0, 3, 1, 2).reshape(len(x), math.prod(x.shape[1:]))


def _dense_of(weights: Mapping[str, Array], place: str, activation: Activation) -> Step:
    return _dense(weights[f"{place}/weight"], weights[f"{place}/bias"], activation)


def _dense(weight: Array, bias: Array, activation: Activation) -> Step:
    return _product(np.array(weight.T, order="C"), bias.copy(), activation)


def _product(matrix: Array, bias: Array, activation: Activation) -> Step:
    multiply, maximum, tanh, zero = np.matmul, np.maximum, np.tanh, np.float32(0)

    def linear(x: Array) -> Array:
        y: Array = multiply(x, matrix)
        y += bias
        return y

    def relu(x: Array) -> Array:
        y: Array = multiply(x, matrix)
        y += bias
        maximum(y, zero, out=y)
        return y

    def hyperbolic(x: Array) -> Array:
        y: Array = multiply(x, matrix)
        y += bias
        tanh(y, out=y)
        return y

    return {"none": linear, "relu": relu, "tanh": hyperbolic}[activation]
