"""The same networks in NumPy: what actors and the gateway run.

Everything that can be done once is done when weights arrive: transposes, folded dueling heads, heads on one trunk side
by side in one matrix. Convolutions gather their windows (im2col) with the channels last, so that each copy is of whole
rows. Every layer is made once from its weights, then it is a function that costs small batches little.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import Columns
from sparring.nets import shapes
from sparring.nets.shapes import STATE, Shape, after
from sparring.wire.chunk import Array
from sparring.wire.network import (
    NORMALISED_LIMIT,
    Activation,
    Conv,
    Dense,
    Entities,
    Gru,
    Input,
    Layer,
    NetworkSpec,
    Pool,
    Residual,
)

ABSENT = np.float32(-1e9)  # the attention score of an entity that is not there
_BLOCK_ROWS = 32  # of images: keeps the gathered windows near the cache
# Of the widest dense layer's rows: they stay in the cache until the next layer reads them, and malloc gives the same
# memory again, where it would return larger blocks to the system (docs/performance.md).
_BLOCK_BYTES = 256 << 10

Step = Callable[[Array], Array]
MemoryStep = Callable[[Array, Array], tuple[Array, Array]]  # features, state → output, state
_IN_PLACE: dict[Activation, Step] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, np.float32(0), out=x),
    "tanh": lambda x: np.tanh(x, out=x),
}


class NumpyForward:
    """A Forward (nets/forward.py) that needs nothing but NumPy."""

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, Array], *, sparse: bool = False) -> None:
        """`sparse`: the first layers skip what is zero (nets/sparse_layer.py), where `sees_bytes` and with numba."""
        shapes.fit(spec, weights)
        self.spec = spec
        sparse = sparse and sees_bytes(spec)
        read = _bytes_reader if sparse else partial(_flat_reader, spec, weights)
        self._flats = [(leaf.name, read(leaf)) for leaf in shapes.flats(spec)]
        self._images = [(leaf.name, _channels_last(leaf)) for leaf in shapes.images(spec)]
        self._image_steps: list[Step] = []
        if (shape := shapes.image_shape(spec)) is not None:
            self._image_steps = _steps(spec.image, "image", weights, shape)
        self._sets = []
        for i, (encoder, leaf, count) in enumerate(shapes.entity_sets(spec)):
            encode = entity_encoder(encoder, shapes.set_shape(leaf)[0], f"entities/{i}", weights)
            self._sets.append((leaf.name, count.name, _set_reader(leaf), encode))
        self._branches = [_Branch.of(spec, weights, i, place, sparse) for i, place in enumerate(shapes.trunks(spec))]

    def initial_state(self, n: int) -> Array:
        return shapes.initial_state(self.spec, n)

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        joined = self._joined(observation)
        out: dict[str, Array] = {}
        if self.spec.memory is None:
            state = None
        elif state is None:
            state = self.initial_state(len(joined))
        elif state.shape != (len(joined), shapes.state_width(self.spec)):
            do = f"Give back what the step before gave, [n, {shapes.state_width(self.spec)}], or none"
            raise ConfigError(f"a state of shape {state.shape} for {len(joined)} rows", where="network", do=do)
        # Weights are finite; BLAS may still flag what it finds in memory beside a narrow matrix.
        with np.errstate(invalid="ignore"):
            states = [branch.heads_of(joined, state, out) for branch in self._branches]
        if self.spec.memory is not None:
            after = [one for one in states if one is not None]
            out[STATE] = after[0] if len(after) == 1 else np.concatenate(after, axis=1)
        return out

    def _joined(self, observation: Columns) -> Array:
        try:
            parts = [read(observation[name]) for name, read in self._flats]
            if self._sets:
                sets = self._sets
                parts[:0] = [encode(read(observation[leaf]), observation[n]) for leaf, n, read, encode in sets]
            if self._images:
                parts.insert(0, self._features(observation))
        except KeyError as missing:
            do = f"Give {', '.join(x.name for x in self.spec.inputs)}"
            raise ConfigError(f"no observation leaf {missing}", where="network", do=do) from None
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _features(self, observation: Columns) -> Array:
        frames = [read(observation[name]) for name, read in self._images]
        x = frames[0] if len(frames) == 1 else np.concatenate(frames, axis=3)
        blocks = []
        for first in range(0, max(len(x), 1), _BLOCK_ROWS):
            block = x[first : first + _BLOCK_ROWS]
            for step in self._image_steps:
                block = step(block)
            blocks.append(block)
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A trunk, its memory, and the heads on it as one matrix, of which each head is some columns."""

    steps: list[Step]
    memory: MemoryStep | None
    part: slice  # of its memory in the state
    matrix: Step | None  # of the heads; None where no head is on this trunk
    heads: list[tuple[str, slice | int]]  # their columns; one number is a column
    block_rows: int  # that pass through trunk and heads together, where there is no memory

    @classmethod
    def of(cls, spec: NetworkSpec, weights: Mapping[str, Array], index: int, place: str, sparse: bool) -> "_Branch":
        mine = [head for head in spec.heads if shapes.trunk_of(spec, head) == place]
        steps = _steps(spec.trunk, place, weights, (0,)) if mine or spec.memory is not None else []
        if sparse and steps:
            steps[0] = _sparse_step(spec.trunk[0], f"{place}/0", weights)
        memory = None if spec.memory is None else memory_step(spec, shapes.memory_of(place), weights)
        size = shapes.memory_width(spec.memory)
        matrix, first = None, 0
        columns: list[tuple[str, slice | int]] = []
        if mine:
            layers = [shapes.head_layer(head, weights) for head in mine]
            matrix = dense(np.concatenate([w for w, _ in layers]), np.concatenate([b for _, b in layers]), "none")
        for head in mine:
            is_number = head.name == "value" and head.units == 1
            columns.append((head.name, first if is_number else slice(first, first + head.units)))
            first += head.units
        widest = max([first, 1, *(layer.units for layer in spec.trunk if isinstance(layer, Dense))])
        rows = max(_BLOCK_ROWS, _BLOCK_BYTES // (4 * widest))
        return cls(steps, memory, slice(index * size, (index + 1) * size), matrix, columns, rows)

    def heads_of(self, x: Array, state: Array | None, out: dict[str, Array]) -> Array | None:
        """Put its heads into `out`; its own part of the next state, where it has a memory."""
        if self.memory is None and self.matrix is not None and len(x) > self.block_rows:
            places = range(0, len(x), self.block_rows)
            blocks = [self.matrix(self._trunk(x[first : first + self.block_rows])) for first in places]
            self._split(np.concatenate(blocks), out)
            return None
        x, after = self._trunk(x), None
        if self.memory is not None and state is not None:
            x, after = self.memory(x, state[:, self.part])
        if self.matrix is not None:
            self._split(self.matrix(x), out)
        return after

    def _trunk(self, x: Array) -> Array:
        for step in self.steps:
            x = step(x)
        return x

    def _split(self, y: Array, out: dict[str, Array]) -> None:
        for name, columns in self.heads:
            out[name] = y[:, columns]


def _reader(leaf: Input) -> Step:
    """Raw rows to float32 [n, width]."""
    size = shapes.width(leaf)
    shift, scale = np.float32(leaf.shift), np.float32(leaf.scale)
    if leaf.one_hot:
        choices = np.arange(leaf.one_hot)
        return lambda raw: (raw.astype(np.int64)[..., None] == choices).astype(np.float32).reshape(len(raw), size)
    if leaf.shift == 0.0 and leaf.scale == 1.0:
        return lambda raw: np.asarray(raw, np.float32).reshape(len(raw), size)
    return lambda raw: ((raw.astype(np.float32) - shift) * scale).reshape(len(raw), size)


def sees_bytes(spec: NetworkSpec) -> bool:
    """Whether the network sees one leaf of bytes as they are, and its first layers are dense."""
    leaf, plain = spec.inputs[0], ("uint8", 0, 0.0, 1.0, False)
    alone = len(spec.inputs) == 1 and not spec.image and bool(spec.trunk) and isinstance(spec.trunk[0], Dense)
    return alone and (leaf.dtype, leaf.one_hot, leaf.shift, leaf.scale, leaf.normalise) == plain


def _bytes_reader(leaf: Input) -> Step:
    """Raw rows to uint8 [n, width]."""
    size = shapes.width(leaf)
    return lambda raw: np.asarray(raw, np.uint8).reshape(len(raw), size)


def _sparse_step(layer: Layer, place: str, weights: Mapping[str, Array]) -> Step:
    from sparring.nets.sparse_layer import sparse_dense  # needs numba

    assert isinstance(layer, Dense)
    sums = sparse_dense(weights[f"{place}/weight"], weights[f"{place}/bias"], relu=layer.activation == "relu")
    activate = _IN_PLACE[layer.activation]
    return sums if layer.activation == "relu" else lambda x: activate(sums(x))


def _flat_reader(spec: NetworkSpec, weights: Mapping[str, Array], leaf: Input) -> Step:
    """Raw rows to float32 [n, width], normalised where the input is."""
    read = _reader(leaf)
    if not leaf.normalise:
        return read
    mean, deviation = (weights[name].ravel().copy() for name in shapes.statistics_of(spec, leaf))
    low, high = np.float32(-NORMALISED_LIMIT), np.float32(NORMALISED_LIMIT)

    def normalised(raw: Array) -> Array:
        x: Array = read(raw) - mean
        x /= deviation
        return np.clip(x, low, high, out=x)

    return normalised


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


def _set_reader(leaf: Input) -> Step:
    """Raw sets to float32 [n x frames, most, features]."""
    read, shape = _reader(leaf), shapes.set_shape(leaf)[1:]
    return lambda raw: read(raw).reshape(-1, *shape)


def _steps(layers: tuple[Layer, ...], place: str, weights: Mapping[str, Array], shape: Shape) -> list[Step]:
    """The layers of a stack; rows of numbers come out of it."""
    steps: list[Step] = []
    for i, layer in enumerate(layers):
        at = f"{place}/{i}"
        if isinstance(layer, Dense):
            if len(shape) == 3:
                steps.append(_flatten)
            steps.append(dense_of(weights, at, layer.activation))
        elif isinstance(layer, Conv):
            steps.append(conv(layer, at, weights, shape))
        else:
            steps.append(pool(layer, shape) if isinstance(layer, Pool) else residual(layer, at, weights, shape))
        shape = after(layer, shape)
    return [*steps, _flatten] if len(shape) == 3 else steps


def _flatten(x: Array) -> Array:
    return x.transpose(0, 3, 1, 2).reshape(len(x), math.prod(x.shape[1:]))


def dense_of(weights: Mapping[str, Array], place: str, activation: Activation) -> Step:
    """The dense layer at that place."""
    return dense(weights[f"{place}/weight"], weights[f"{place}/bias"], activation)


def dense(weight: Array, bias: Array, activation: Activation) -> Step:
    """x [n, inputs] → [n, units]; leading axes may be more."""
    matrix, bias, activate = np.array(weight.T, order="C"), bias.copy(), _IN_PLACE[activation]

    def step(x: Array) -> Array:
        y: Array = np.matmul(x, matrix)
        y += bias
        return activate(y)

    return step


def conv(layer: Conv, place: str, weights: Mapping[str, Array], shape: Shape) -> Step:
    """x [n, height, width, channels] → the same behind the convolution; `shape` is [channels, height, width] before."""
    channels, kernel, stride, pad = shape[0], layer.kernel, layer.stride, layer.padding
    _, high, wide = after(layer, shape)
    weight, bias = weights[f"{place}/weight"], weights[f"{place}/bias"]
    product = dense(weight.transpose(0, 2, 3, 1).reshape(layer.channels, -1), bias, layer.activation)

    def step(x: Array) -> Array:
        if pad:
            x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        n, (s0, s1, s2, s3) = len(x), x.strides
        windows = np.lib.stride_tricks.as_strided(
            x, (n, high, wide, kernel, kernel, channels), (s0, s1 * stride, s2 * stride, s1, s2, s3), writeable=False
        )
        y = product(windows.reshape(n * high * wide, kernel * kernel * channels))
        return y.reshape(n, high, wide, layer.channels)

    return step


def pool(layer: Pool, shape: Shape) -> Step:
    """The largest of each window, channels last. One maximum for each place in the window, over whole images."""
    kernel, stride, pad = layer.kernel, layer.stride, layer.padding
    _, high, wide = after(layer, shape)

    def step(x: Array) -> Array:
        if pad:
            x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=-np.inf)
        y: Array | None = None
        for i in range(kernel):
            for j in range(kernel):
                part = x[:, i : i + (high - 1) * stride + 1 : stride, j : j + (wide - 1) * stride + 1 : stride]
                y = part.copy() if y is None else np.maximum(y, part, out=y)
        assert y is not None
        return y

    return step


def residual(layer: Residual, place: str, weights: Mapping[str, Array], shape: Shape) -> Step:
    """Two layers around which x also passes: convolutions where `shape` is an image's, dense ones otherwise."""
    if len(shape) == 3:
        units, kernel = len(weights[f"{place}/first/bias"]), layer.kernel
        first = conv(Conv(units, kernel, 1, kernel // 2, layer.activation), f"{place}/first", weights, shape)
        second = conv(Conv(shape[0], kernel, 1, kernel // 2, "none"), f"{place}/second", weights, (units, *shape[1:]))
    else:
        first = dense_of(weights, f"{place}/first", layer.activation)
        second = dense_of(weights, f"{place}/second", "none")
    before, behind = _IN_PLACE[layer.activation], _IN_PLACE[layer.out]

    def step(x: Array) -> Array:
        y = second(first(before(x.copy())))
        y += x
        return behind(y)

    return step


def memory_step(spec: NetworkSpec, place: str, weights: Mapping[str, Array]) -> MemoryStep:
    """One step of a memory as a single product of [features, h]; σ(x) = (1 + tanh(x / 2)) / 2 never overflows,
    and its halving is in the weights."""
    memory = spec.memory
    assert memory is not None
    u = memory.units
    input_matrix, input_bias = weights[f"{place}/input/weight"].T, weights[f"{place}/input/bias"]
    hidden_matrix, hidden_bias = weights[f"{place}/hidden/weight"].T, weights[f"{place}/hidden/bias"]
    half = np.float32(0.5)
    if isinstance(memory, Gru):
        # Columns: r, z, and n's two sides apart, since r scales the one that comes from h.
        top = np.pad(input_matrix, ((0, 0), (0, u)))
        low = np.insert(hidden_matrix, [2 * u] * u, 0, axis=1)
        bias = np.pad(input_bias, (0, u)) + np.insert(hidden_bias, [2 * u] * u, 0)
        sigmoids = [slice(0, 2 * u)]
    else:
        top, low, bias = input_matrix, hidden_matrix, input_bias + hidden_bias
        sigmoids = [slice(0, 2 * u), slice(3 * u, 4 * u)]  # i and f, and o behind g
    matrix, bias = np.concatenate([top, low]), bias.copy()
    for part in sigmoids:
        matrix[:, part] *= half
        bias[part] *= half
    gates = dense(matrix.T, bias, "none")
    concatenate, tanh = np.concatenate, np.tanh

    def gru(x: Array, h: Array) -> tuple[Array, Array]:
        y = gates(concatenate((x, h), axis=1))
        rz = y[:, : 2 * u]
        tanh(rz, out=rz)
        rz += 1
        rz *= half
        n = y[:, 2 * u : 3 * u]
        n += rz[:, :u] * y[:, 3 * u :]
        tanh(n, out=n)
        h = n + rz[:, u:] * (h - n)
        return h, h

    def lstm(x: Array, state: Array) -> tuple[Array, Array]:
        y = tanh(gates(concatenate((x, state[:, :u]), axis=1)))
        c = (half + half * y[:, u : 2 * u]) * state[:, u:] + (half + half * y[:, :u]) * y[:, 2 * u : 3 * u]
        h = (half + half * y[:, 3 * u :]) * tanh(c)
        return h, concatenate((h, c), axis=1)

    return gru if isinstance(memory, Gru) else lstm


def entity_encoder(
    encoder: Entities, frames: int, place: str, weights: Mapping[str, Array]
) -> Callable[[Array, Array], Array]:
    """Sets [n x frames, most, features] and their counts [n, …], as [n, frames x units]."""
    embed = dense_of(weights, f"{place}/embed", "relu")
    blocks = [_block(encoder, f"{place}/{block}", weights) for block in range(encoder.blocks)]
    zero, numbers = np.float32(0), frames * encoder.units

    def encode(x: Array, count: Array) -> Array:
        there = np.arange(x.shape[1], dtype=np.float32) < count.astype(np.float32).reshape(-1, 1)
        column = there[:, :, None]
        x = embed(np.where(column, x, zero))
        for block in blocks:
            x = block(x, there)
        if encoder.pool == "mean":
            pooled = np.where(column, x, zero).sum(axis=1)
            pooled /= np.maximum(there.sum(axis=1, keepdims=True), 1).astype(np.float32)
        else:
            pooled = np.where(there.any(axis=1, keepdims=True), np.where(column, x, -np.inf).max(axis=1), zero)
        rows: Array = pooled.reshape(len(count), numbers)
        return rows

    return encode


def _block(encoder: Entities, place: str, weights: Mapping[str, Array]) -> Callable[[Array, Array], Array]:
    heads, size = encoder.heads, encoder.units // encoder.heads
    attend, join = dense_of(weights, f"{place}/attend", "none"), dense_of(weights, f"{place}/join", "none")
    first, second = dense_of(weights, f"{place}/first", "relu"), dense_of(weights, f"{place}/second", "none")
    scale = np.float32(1 / math.sqrt(size))

    def block(x: Array, there: Array) -> Array:
        n, most, units = x.shape
        query, key, value = attend(x).reshape(n, most, 3, heads, size).transpose(2, 0, 3, 1, 4)
        scores = np.where(there[:, None, None, :], query @ key.swapaxes(2, 3) * scale, ABSENT)
        scores -= scores.max(axis=3, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=3, keepdims=True)
        x = x + join((scores @ value).transpose(0, 2, 1, 3).reshape(n, most, units))
        x += second(first(x))
        return x

    return block
