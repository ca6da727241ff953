"""Networks that learn: a NetworkSpec as a torch module, and the spec that suits a seat by default."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparring.games.protocol import Columns
from sparring.games.spec import DISCRETE, Leaf, SeatSpec
from sparring.nets import shapes
from sparring.nets.delta_conv import channels_last, first_layers
from sparring.nets.row_threads import run_parts, split_rows
from sparring.nets.shapes import STATE
from sparring.nets.torch_layers import apply_layer, apply_memory, encode_entities
from sparring.nets.torch_state import take_rows, tensor, tensors
from sparring.wire.chunk import Array
from sparring.wire.network import Activation, Conv, Dense, Entities, Head, Input, Layer, Lstm, Memory, NetworkSpec

_POLICY_HEADS = ("logits", "mean", "log_std")
_ORDER_ONE = 10.0  # floats bounded by this are left as they are

Leaves = Mapping[str, Tensor]  # of an observation: leaf name → [n, *shape] of any dtype
Heads = dict[str, Tensor]  # head name → [n, units], and "value" as [n]; with a memory also "state"


class Network(nn.Module):
    """The spec in torch. Equal seeds give equal parameters; convolutions run in channels_last."""

    def __init__(self, spec: NetworkSpec, seed: int | torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        rng = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
        for name, shape in shapes.parameters(spec).items():
            value = torch.zeros(shape)
            if name.endswith("/weight"):
                nn.init.orthogonal_(value, _gain(name, spec), generator=rng)
            elif name.endswith("memory/hidden/bias") and isinstance(spec.memory, Lstm):
                value[spec.memory.units : 2 * spec.memory.units] = 1.0  # forgets nothing at first (Gers et al. 2000)
            self.register_parameter(name, nn.Parameter(_channels_last(value)))

    @classmethod
    def with_weights(cls, spec: NetworkSpec, weights: Mapping[str, Array]) -> "Network":
        """The network with these weights (copied), to act with: it does not learn."""
        shapes.fit(spec, weights)
        net = cls.__new__(cls)
        nn.Module.__init__(net)
        net.spec = spec
        for name, value in weights.items():
            net.register_parameter(name, nn.Parameter(_channels_last(torch.tensor(value)), requires_grad=False))
        return net

    def forward(self, observation: Leaves, state: Tensor | None = None) -> Heads:
        """Heads by name. With a memory also "state" [n, state_width], which the next step takes; without a state an
        episode begins."""
        if not self.spec.image or self.spec.memory is not None:
            return self._forward(observation, state)
        parts = split_rows(len(next(iter(observation.values()))))
        calls = [partial(self._forward, {name: leaf[part] for name, leaf in observation.items()}) for part in parts]
        return run_parts(calls, self)

    def at(self, observation: Leaves, rows: Tensor) -> Heads:
        """Heads of those rows of each leaf, in that order, by a network without a memory."""
        parts = split_rows(len(rows)) if self.spec.image else [slice(None)]
        return run_parts([partial(self._forward_rows, observation, rows[part]) for part in parts], self)

    def unroll(self, observation: Leaves, state: Tensor | None = None, starts: Tensor | None = None) -> Heads:
        """Heads by name, [time, n, …], for leaves [time, n, *shape]; with a memory also "state" after the last step.

        `state` [n, state_width] is what the first step takes; where `starts` [time, n] is true an episode begins at
        that step, and its memory is empty. A network without a memory takes both and needs neither.
        """
        time, n = next(iter(observation.values())).shape[:2]
        x = self._joined({name: value.flatten(0, 1) for name, value in observation.items()})
        out = self._heads(x, time, state, starts)
        return {name: y if name == STATE else y.reshape(time, n, *y.shape[1:]) for name, y in out.items()}

    def arranged(self, observation: Leaves) -> dict[str, Tensor]:
        """The same leaves with the channels of images last in memory, as convolutions want them: for rows that are
        passed several times, so that they are arranged once."""
        images = {leaf.name for leaf in shapes.images(self.spec)}
        return {name: _channels_last(leaf) if name in images else leaf for name, leaf in observation.items()}

    def initial_state(self, n: int) -> Tensor:
        """The memory of n episodes that begin: zeros [n, state_width]."""
        return next(self.parameters()).new_zeros((n, shapes.state_width(self.spec)))

    def weights(self) -> dict[str, Array]:
        """A copy of every parameter, float32."""
        arrays = {name: value.detach().cpu().numpy() for name, value in self.named_parameters()}
        return {name: np.array(value, np.float32, order="C") for name, value in arrays.items()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Take over `weights` (copied); ModelDamaged where they are not this network's."""
        shapes.fit(self.spec, weights)
        with torch.no_grad():
            for name, value in self.named_parameters():
                value.copy_(torch.tensor(weights[name]))

    def _forward_rows(self, observation: Leaves, rows: Tensor) -> Heads:
        return self._forward({name: take_rows(leaf, rows) for name, leaf in observation.items()})

    def _forward(self, observation: Leaves, state: Tensor | None = None) -> Heads:
        return self._heads(self._joined(observation), 1, state, None)

    def _heads(self, x: Tensor, time: int, state: Tensor | None, starts: Tensor | None) -> Heads:
        """Heads of the joined leaves [time x n, numbers], and the state after the last step where there is a memory."""
        memory, n = self.spec.memory, len(x) // time
        features: dict[str, Tensor] = {}
        states: list[Tensor] = []
        for i, place in enumerate(shapes.trunks(self.spec)):
            y = self._stack(place, self.spec.trunk, x)
            if memory is not None:
                size = shapes.memory_width(memory)
                before = (self.initial_state(n) if state is None else state)[:, i * size : (i + 1) * size]
                steps = y.reshape(time, n, y.shape[1])
                y, last = apply_memory(memory, shapes.memory_of(place), self._params, steps, before, starts)
                states.append(last)
                y = y.flatten(0, 1)
            features[place] = y
        out = {head.name: self._head(head, features[shapes.trunk_of(self.spec, head)]) for head in self.spec.heads}
        return out | {STATE: torch.cat(states, 1)} if states else out

    def _joined(self, observation: Leaves) -> Tensor:
        """All leaves of each row as one row of numbers."""
        parts = []
        if images := shapes.images(self.spec):
            parts.append(self._image(images, observation).flatten(1))
        for i, (encoder, leaf, count) in enumerate(shapes.entity_sets(self.spec)):
            frames, most, features = shapes.set_shape(leaf)
            each = _scaled(leaf, observation[leaf.name]).reshape(-1, most, features)
            there = observation[count.name].reshape(-1)
            pooled = encode_entities(encoder, f"entities/{i}", self._params, each, there)
            parts.append(pooled.reshape(-1, frames * encoder.units))
        for leaf in shapes.flats(self.spec):
            parts.append(_scaled(leaf, observation[leaf.name]).reshape(-1, shapes.width(leaf)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _image(self, images: tuple[Input, ...], observation: Leaves) -> Tensor:
        """Outputs of the image layers on all leaves that are images."""
        raw = observation[images[0].name]
        if len(images) == 1 and raw.dtype == torch.uint8 and raw.dim() == 4 and raw.is_cpu:
            x, done = first_layers(self.spec.image, images[0], raw, self._params)
            if done:
                return self._stack("image", self.spec.image, x, done)
        frames = [_scaled(leaf, observation[leaf.name]) for leaf in images]
        frames = [frame if frame.dim() == 4 else frame.unsqueeze(1) for frame in frames]
        x = frames[0] if len(frames) == 1 else torch.cat(frames, 1)
        return self._stack("image", self.spec.image, x.contiguous(memory_format=torch.channels_last))

    def _stack(self, place: str, layers: tuple[Layer, ...], x: Tensor, done: int = 0) -> Tensor:
        for i, layer in enumerate(layers[done:], done):
            x = apply_layer(layer, f"{place}/{i}", self._params, x)
        return x

    def _head(self, head: Head, x: Tensor) -> Tensor:
        out = functional.linear(x, *self._params(head.name))
        if head.dueling:
            out = functional.linear(x, *self._params(f"{head.name}/value")) + out - out.mean(1, keepdim=True)
        return out.squeeze(1) if head.name == "value" and head.units == 1 else out

    def _params(self, place: str) -> tuple[Tensor, Tensor]:
        # Looked up at each call, so that torch.func.functional_call can put others in their place.
        found: tuple[Tensor, Tensor] = getattr(self, f"{place}/weight"), getattr(self, f"{place}/bias")
        return found


class TorchForward:
    """A Forward (nets/forward.py) by torch, for actors in a process that has it anyway."""

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, Array]) -> None:
        self.spec = spec
        self._net = Network.with_weights(spec, weights)

    def initial_state(self, n: int) -> Array:
        return shapes.initial_state(self.spec, n)

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        with torch.inference_mode():
            out = self._net(tensors(observation), None if state is None else tensor(state))
            return {name: y.numpy() for name, y in out.items()}


def default_network(
    seat: SeatSpec,
    *,
    hidden: tuple[int, ...] = (64, 64),
    activation: Activation = "tanh",
    heads: tuple[Head, ...] = (),
    separate_value: bool = False,
    frame_stack: int = 1,
    memory: Memory | None = None,
) -> NetworkSpec:
    """The network that suits what `seat` sees and does; convolutions where it sees images, attention over entities.

    Without `heads`: logits (one per choice) or mean and log_std (one per number), then value.
    """
    size = next((leaf.stacked(frame_stack)[-2:] for leaf in seat.observation if _is_image(leaf, frame_stack)), None)
    return NetworkSpec(
        inputs=tuple(_input(leaf, frame_stack, size) for leaf in seat.observation),
        heads=heads or default_heads(seat.action),
        trunk=tuple(Dense(units, activation) for units in hidden),
        image=_image_layers(min(size)) if size else (),
        separate_value=separate_value,
        memory=memory,
        entities=tuple(Entities(x.name, f"{x.name}/count") for x in seat.observation if x.kind == "entities"),
    )


def default_heads(action: Leaf) -> tuple[Head, ...]:
    """What chooses among `action`'s values, and "value"."""
    value = Head("value", 1)
    if action.kind in DISCRETE:
        return Head("logits", action.masks), value
    numbers = math.prod(action.shape)
    return Head("mean", numbers), Head("log_std", numbers), value


def policy_heads(action: Leaf) -> tuple[Head, ...]:
    """Heads that choose among `action`'s values, without "value"."""
    return default_heads(action)[:-1]


def _is_image(leaf: Leaf, frame_stack: int) -> bool:
    return leaf.kind == "image" and len(leaf.stacked(frame_stack)) in (2, 3)


def _input(leaf: Leaf, frame_stack: int, size: tuple[int, ...] | None) -> Input:
    shape = leaf.stacked(frame_stack)
    if leaf.kind in DISCRETE:
        return Input(leaf.name, shape, one_hot=max(leaf.choices), dtype=leaf.dtype)
    shift, scale = _scaling(leaf)
    # Only images of one size can be joined along their channels; any other is flattened.
    image = _is_image(leaf, frame_stack) and shape[-2:] == size
    return Input(leaf.name, shape, shift, scale, dtype=leaf.dtype, image=image)


def _scaling(leaf: Leaf) -> tuple[float, float]:
    low, high = leaf.low, leaf.high
    if leaf.kind == "image" and leaf.dtype == "uint8" and (low is None or high is None):
        low, high = 0.0, 255.0
    if low is None or high is None or high <= low or high - low > 1e6:
        return 0.0, 1.0
    if leaf.kind == "image":
        return float(low), 1.0 / (high - low)  # whole numbers in a spec would not read back as they were written
    # Bounds are seldom reached: shrinking numbers of order one by them would only weaken the signal.
    if max(abs(low), abs(high)) <= _ORDER_ONE:
        return 0.0, 1.0
    return (low + high) / 2, 2.0 / (high - low)


def _image_layers(side: int) -> tuple[Layer, ...]:
    if side >= 36:  # Mnih et al. 2015
        return Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1)
    if side >= 16:
        return Conv(32, 4, 2), Conv(64, 3, 2)
    return Conv(32, 3, 1, 1), Conv(64, 3, 1, 1)  # boards: every cell counts


def _channels_last(x: Tensor) -> Tensor:
    """x with its channels last in memory, where it has channels."""
    if x.dim() != 4:
        return x
    return channels_last(x) if x.dtype == torch.uint8 else x.contiguous(memory_format=torch.channels_last)


def _gain(name: str, spec: NetworkSpec) -> float:
    place = name.removesuffix("/weight")
    if place in _POLICY_HEADS:
        return 0.01  # a new policy is nearly uniform, and new action values are nearly equal
    if place.endswith(("/second", "/join")):
        return 0.0  # a block begins as the identity (Goyal et al. 2017), however many there are
    whole = ("memory", "value_memory", *(head.name for head in spec.heads))
    return 1.0 if place.split("/")[0] in whole or place.endswith("/attend") else math.sqrt(2)


def _scaled(leaf: Input, raw: Tensor) -> Tensor:
    if leaf.one_hot:
        return (raw.long().unsqueeze(-1) == torch.arange(leaf.one_hot, device=raw.device)).float()
    x = raw.float()
    own = x is not raw  # a copy of ours, which may be changed in place
    if leaf.shift != 0.0:
        x = x.sub_(leaf.shift) if own else x - leaf.shift
    if leaf.scale != 1.0:
        x = x.mul_(leaf.scale) if own else x * leaf.scale
    return x
