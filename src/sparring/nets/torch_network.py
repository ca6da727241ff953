"""Networks that learn: a NetworkSpec as a torch module, each kind of layer, and the spec that suits a seat by default.

nets/numpy_forward.py and nets/onnx_graph.py have the same layers.
"""

import math
from collections.abc import Callable, Mapping
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
from sparring.nets.torch_state import activate, activate_in_place, take_rows, tensor, tensors
from sparring.wire.chunk import Array
from sparring.wire.network import (
    NORMALISED_LIMIT,
    Activation,
    Conv,
    Dense,
    Entities,
    Gru,
    Head,
    Input,
    Layer,
    Lstm,
    Memory,
    NetworkSpec,
    Pool,
)

_POLICY_HEADS = ("logits", "mean", "log_std")
_ORDER_ONE = 10.0  # floats bounded by this are left as they are
ABSENT = -1e9  # the attention score of an entity that is not there

Params = Callable[[str], tuple[Tensor, Tensor]]  # the weight and the bias at a place in the network
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
            if name.startswith("inputs/"):
                self.register_buffer(name, value + name.endswith("/deviation"))
                continue
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
            if name.startswith("inputs/"):
                net.register_buffer(name, torch.tensor(value))
                continue
            net.register_parameter(name, nn.Parameter(_channels_last(torch.tensor(value)), requires_grad=False))
        return net

    def forward(self, observation: Leaves, state: Tensor | None = None) -> Heads:
        """Heads by name. With a memory also "state" [n, state_width], which the next step takes; without a state an
        episode begins."""
        if not self._split or self.spec.memory is not None:
            return self._forward(observation, state)
        parts = split_rows(len(next(iter(observation.values()))))
        calls = [partial(self._forward, {name: leaf[part] for name, leaf in observation.items()}) for part in parts]
        return run_parts(calls, self)

    def at(self, observation: Leaves, rows: Tensor) -> Heads:
        """Heads of those rows of each leaf, in that order, by a network without a memory."""
        parts = split_rows(len(rows)) if self._split else [slice(None)]
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
        """A copy of every parameter, float32, in the order of the spec."""
        found = {**dict(self.named_buffers()), **dict(self.named_parameters())}  # statistics of inputs come first
        return {name: np.array(value.detach().cpu().numpy(), np.float32, order="C") for name, value in found.items()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Take over `weights` (copied); ModelDamaged where they are not this network's."""
        shapes.fit(self.spec, weights)
        with torch.no_grad():
            for name, value in self.state_dict().items():
                value.copy_(torch.tensor(weights[name]))

    @property
    def _split(self) -> bool:
        """Whether threads share the rows of a batch."""
        return bool(self.spec.image)

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
            each = scaled(leaf, observation[leaf.name]).reshape(-1, most, features)
            there = observation[count.name].reshape(-1)
            pooled = encode_entities(encoder, f"entities/{i}", self._params, each, there)
            parts.append(pooled.reshape(-1, frames * encoder.units))
        for leaf in shapes.flats(self.spec):
            x = scaled(leaf, observation[leaf.name])
            if leaf.normalise:
                mean, deviation = (getattr(self, name) for name in shapes.statistics_of(self.spec, leaf))
                x = ((x - mean) / deviation).clamp(-NORMALISED_LIMIT, NORMALISED_LIMIT)
            parts.append(x.reshape(-1, shapes.width(leaf)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _image(self, images: tuple[Input, ...], observation: Leaves) -> Tensor:
        """Outputs of the image layers on all leaves that are images."""
        raw = observation[images[0].name]
        if len(images) == 1 and raw.dtype == torch.uint8 and raw.dim() == 4 and raw.is_cpu:
            x, done = first_layers(self.spec.image, images[0], raw, self._params)
            if done:
                return self._stack("image", self.spec.image, x, done)
        frames = [scaled(leaf, observation[leaf.name]) for leaf in images]
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


def apply_layer(layer: Layer, place: str, params: Params, x: Tensor) -> Tensor:
    """One layer of a stack on x: [n, channels, height, width] or [n, numbers]."""
    if isinstance(layer, Conv):
        return activate_in_place(layer.activation, functional.conv2d(x, *params(place), layer.stride, layer.padding))
    if isinstance(layer, Dense):
        return activate_in_place(layer.activation, functional.linear(x.flatten(1), *params(place)))
    if isinstance(layer, Pool):
        return functional.max_pool2d(x, layer.kernel, layer.stride, layer.padding)
    first, second = params(f"{place}/first"), params(f"{place}/second")
    y = activate(layer.activation, x)
    if x.dim() == 4:
        y = activate_in_place(layer.activation, functional.conv2d(y, *first, padding=layer.kernel // 2))
        y = functional.conv2d(y, *second, padding=layer.kernel // 2)
    else:
        y = functional.linear(activate_in_place(layer.activation, functional.linear(y, *first)), *second)
    return activate(layer.out, x + y)


def apply_memory(
    memory: Memory, place: str, params: Params, x: Tensor, state: Tensor, starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The memory's output [time, n, units] for x [time, n, numbers], and its state after the last step."""
    (weight, bias), (recurrent, recurrent_bias) = params(f"{place}/input"), params(f"{place}/hidden")
    keep = None if starts is None else (~starts.bool()).to(x.dtype).unsqueeze(-1)
    outputs = []
    # One cell a step: as fast as the fused sequence here, and an episode may begin at any step.
    for t, seen in enumerate(x):
        if keep is not None:
            state = state * keep[t]
        if isinstance(memory, Gru):
            state = hidden = torch.gru_cell(seen, state, weight, recurrent, bias, recurrent_bias)
        else:
            before = (state[:, : memory.units], state[:, memory.units :])
            hidden, cell = torch.lstm_cell(seen, before, weight, recurrent, bias, recurrent_bias)
            state = torch.cat((hidden, cell), 1)
        outputs.append(hidden)
    return torch.stack(outputs), state


def encode_entities(encoder: Entities, place: str, params: Params, x: Tensor, count: Tensor) -> Tensor:
    """Sets [n, most, features] of which the first `count` [n] are there, as [n, units]."""
    n, most, _ = x.shape
    there = torch.arange(most, dtype=torch.float32, device=x.device) < count.float().unsqueeze(1)
    column = there.unsqueeze(2)
    x = functional.relu(functional.linear(torch.where(column, x, 0.0), *params(f"{place}/embed")))
    size = encoder.units // encoder.heads
    for block in range(encoder.blocks):
        at = f"{place}/{block}"
        parts = functional.linear(x, *params(f"{at}/attend")).reshape(n, most, 3, encoder.heads, size)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [n, heads, most, size]
        scores = query @ key.transpose(2, 3) / math.sqrt(size)
        attention = scores.masked_fill(~there[:, None, None, :], ABSENT).softmax(3)
        mixed = (attention @ value).transpose(1, 2).reshape(n, most, encoder.units)
        x = x + functional.linear(mixed, *params(f"{at}/join"))
        hidden = functional.relu(functional.linear(x, *params(f"{at}/first")))
        x = x + functional.linear(hidden, *params(f"{at}/second"))
    if encoder.pool == "mean":
        return torch.where(column, x, 0.0).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
    return torch.where(there.any(1, keepdim=True), torch.where(column, x, -math.inf).amax(1), 0.0)


class TorchForward:
    """A Forward (nets/forward.py) by torch, for actors in a process that has it anyway."""

    def __init__(self, net: Network) -> None:
        self.spec, self._net = net.spec, net

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        with torch.inference_mode():
            out = self._net(tensors(observation), None if state is None else tensor(state))
            return {name: y.numpy() for name, y in out.items()}


def default_network(  # noqa: PLR0913  (what a network may have, by name)
    seat: SeatSpec,
    *,
    hidden: tuple[int, ...] = (64, 64),
    activation: Activation = "tanh",
    heads: tuple[Head, ...] = (),
    separate_value: bool = False,
    frame_stack: int = 1,
    memory: Memory | None = None,
    normalise: bool = False,
) -> NetworkSpec:
    """The network that suits what `seat` sees and does; convolutions where it sees images, attention over entities.

    Without `heads`: logits (one per choice) or mean and log_std (one per number), then value. `normalise` applies to
    floats that are not known to lie between -1 and 1.
    """
    size = next((leaf.stacked(frame_stack)[-2:] for leaf in seat.observation if _is_image(leaf, frame_stack)), None)
    return NetworkSpec(
        inputs=tuple(_input(leaf, frame_stack, size, normalise) for leaf in seat.observation),
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


def _input(leaf: Leaf, frame_stack: int, size: tuple[int, ...] | None, normalise: bool) -> Input:
    shape = leaf.stacked(frame_stack)
    if leaf.kind in DISCRETE:
        return Input(leaf.name, shape, one_hot=max(leaf.choices), dtype=leaf.dtype)
    shift, scale = _scaling(leaf)
    # Only images of one size can be joined along their channels; any other is flattened.
    image = _is_image(leaf, frame_stack) and shape[-2:] == size
    unit = leaf.low is not None and leaf.high is not None and max(-leaf.low, leaf.high) <= 1
    normalise = normalise and not unit and leaf.kind in ("vector", "box") and leaf.dtype.startswith("float")
    return Input(leaf.name, shape, shift, scale, dtype=leaf.dtype, image=image, normalise=normalise)


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


def scaled(leaf: Input, raw: Tensor) -> Tensor:
    """What a network sees of a leaf, float32: (raw - shift) * scale, or a one among zeros for each whole number."""
    if leaf.one_hot:
        return (raw.long().unsqueeze(-1) == torch.arange(leaf.one_hot, device=raw.device)).float()
    x = raw.float()
    own = x is not raw  # a copy of ours, which may be changed in place
    if leaf.shift != 0.0:
        x = x.sub_(leaf.shift) if own else x - leaf.shift
    if leaf.scale != 1.0:
        x = x.mul_(leaf.scale) if own else x * leaf.scale
    return x
