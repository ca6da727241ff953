"""The same networks in NumPy: what actors and the gateway run.

Everything that can be done once is done when weights arrive: transposes, folded dueling heads, heads
that share a trunk side by side in one matrix. Convolutions gather their windows (im2col) with the
channels last, so that each copy is of whole rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import Columns
from sparring.nets.numpy_layers import Recall, Step, conv, dense, dense_of, encoder_of, memory_step, pool, residual
from sparring.nets.shapes import (
    STATE,
    Shape,
    after,
    entity_sets,
    fit,
    flats,
    head_layer,
    image_shape,
    images,
    memory_of,
    memory_width,
    set_shape,
    state_width,
    trunk_of,
    trunks,
    width,
)
from sparring.wire.chunk import Array
from sparring.wire.network import Conv, Dense, Head, Input, Layer, NetworkSpec, Pool, Residual

_BLOCK_ROWS = 32  # of images: keeps the gathered windows near the cache


class NumpyForward:
    """A network with its weights, called with leaf name → [n, *shape]. Threads may share one."""

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, Array]) -> None:
        fit(spec, weights)
        self.spec = spec
        self._flats = [(leaf.name, _reader(leaf)) for leaf in flats(spec)]
        self._pictures = [(leaf.name, _channels_last(leaf)) for leaf in images(spec)]
        self._image: list[Step] = []
        if (shape := image_shape(spec)) is not None:
            self._image = _image_steps(spec.image, weights, shape)
        self._sets = [
            (
                leaf.name,
                count.name,
                _set_reader(leaf),
                encoder_of(encoder, set_shape(leaf)[0], f"entities/{i}", weights),
            )
            for i, (encoder, leaf, count) in enumerate(entity_sets(spec))
        ]
        self._branches = [_Branch.of(spec, weights, i, place) for i, place in enumerate(trunks(spec))]

    def initial_state(self, n: int) -> Array:
        """The memory of n episodes that begin: zeros [n, state_width]."""
        return np.zeros((n, state_width(self.spec)), np.float32)

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        """Heads by name: float32 [n, units], and "value" as [n].

        With a memory also "state", [n, state_width]: what the next step is given. Without a state an episode begins.
        """
        joined = self._joined(observation)
        out: dict[str, Array] = {}
        if self.spec.memory is None:
            for branch in self._branches:
                branch.read(branch.features(joined), out)
            return out
        if state is None:
            state = self.initial_state(len(joined))
        elif state.shape != (len(joined), state_width(self.spec)):
            raise ConfigError(
                f"a state of shape {state.shape} for {len(joined)} rows",
                where="network",
                do=f"Give back what the step before gave, [n, {state_width(self.spec)}], or none",
            )
        states = []
        for branch in self._branches:
            x, kept = branch.recalled(branch.features(joined), state)
            states.append(kept)
            branch.read(x, out)
        out[STATE] = states[0] if len(states) == 1 else np.concatenate(states, axis=1)
        return out

    def _joined(self, observation: Columns) -> Array:
        try:
            parts = [read(observation[name]) for name, read in self._flats]
            if self._sets:
                parts[:0] = [
                    encode(read(observation[leaf]), observation[count]) for leaf, count, read, encode in self._sets
                ]
            if self._pictures:
                parts.insert(0, self._features(observation))
        except KeyError as missing:
            raise ConfigError(
                f"no observation leaf {missing}",
                where="network",
                do=f"Give {', '.join(x.name for x in self.spec.inputs)}",
            ) from None
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

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
    """A trunk, its memory, and the heads on it as one matrix: each head is a slice of its columns, a number one
    column."""

    steps: list[Step]
    recall: Recall | None
    place: slice  # of its memory in the state
    join: Step | None  # the heads' matrix; None where no head is on this trunk
    heads: list[tuple[str, slice | int]]

    @classmethod
    def of(cls, spec: NetworkSpec, weights: Mapping[str, Array], index: int, place: str) -> "_Branch":
        mine = [head for head in spec.heads if trunk_of(spec, head) == place]
        if not mine and spec.memory is None:
            return cls([], None, slice(0), None, [])
        steps = _dense_steps(spec.trunk, weights, place)
        recall = None if spec.memory is None else memory_step(spec.memory, memory_of(place), weights)
        size = memory_width(spec.memory)
        layers = [head_layer(head, weights) for head in mine]
        join = None
        if mine:
            join = dense(np.concatenate([w for w, _ in layers]), np.concatenate([b for _, b in layers]), "none")
        columns, first = [], 0
        for head in mine:
            columns.append((head.name, _columns(head, first)))
            first += head.units
        return cls(steps, recall, slice(index * size, (index + 1) * size), join, columns)

    def features(self, x: Array) -> Array:
        for step in self.steps:
            x = step(x)
        return x

    def recalled(self, x: Array, state: Array) -> tuple[Array, Array]:
        """The memory's output and its own part of the next state."""
        assert self.recall is not None
        return self.recall(x, state[:, self.place])

    def read(self, x: Array, out: dict[str, Array]) -> None:
        """Put its heads into `out`."""
        if self.join is not None:
            y = self.join(x)
            for name, columns in self.heads:
                out[name] = y[:, columns]


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


def _set_reader(leaf: Input) -> Step:
    """Raw sets to float32 [n x frames, most, features]."""
    read, shape = _reader(leaf), set_shape(leaf)[1:]
    return lambda raw: read(raw).reshape(-1, *shape)


def _image_steps(layers: tuple[Layer, ...], weights: Mapping[str, Array], shape: Shape) -> list[Step]:
    steps: list[Step] = []
    for i, layer in enumerate(layers):
        if isinstance(layer, Dense):
            if len(shape) == 3:
                steps.append(_flatten)
            steps.append(dense_of(weights, f"image/{i}", layer.activation))
        elif isinstance(layer, Conv):
            steps.append(conv(layer, weights[f"image/{i}/weight"], weights[f"image/{i}/bias"], shape))
        elif isinstance(layer, Pool):
            steps.append(pool(layer, shape))
        else:
            steps.append(residual(layer, f"image/{i}", weights, shape))
        shape = after(layer, shape)
    return [*steps, _flatten] if len(shape) == 3 else steps


def _dense_steps(layers: tuple[Layer, ...], weights: Mapping[str, Array], place: str) -> list[Step]:
    steps: list[Step] = []
    for i, layer in enumerate(layers):
        assert isinstance(layer, Dense | Residual)  # `parameters` refused any other
        if isinstance(layer, Dense):
            steps.append(dense_of(weights, f"{place}/{i}", layer.activation))
        else:
            steps.append(residual(layer, f"{place}/{i}", weights, (0,)))
    return steps


def _flatten(x: Array) -> Array:
    return x.transpose(0, 3, 1, 2).reshape(len(x), math.prod(x.shape[1:]))
