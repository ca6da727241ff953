"""Each kind of layer in torch; nets/numpy_forward.py and nets/onnx_graph.py have the same layers.

`params` gives the weight and the bias at a place in the network, so that nothing here holds a parameter.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sparring.wire.network import Activation, Conv, Dense, Entities, Gru, Layer, Memory, Pool

ABSENT = -1e9  # the attention score of an entity that is not there

Params = Callable[[str], tuple[Tensor, Tensor]]


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


def activate(activation: Activation, x: Tensor) -> Tensor:
    """The activation of x."""
    if activation == "relu":
        return functional.relu(x)
    return torch.tanh(x) if activation == "tanh" else x


def activate_in_place(activation: Activation, x: Tensor) -> Tensor:
    """The activation of x, which may overwrite x: the gradient of the product before it does not need x."""
    return functional.relu(x, inplace=True) if activation == "relu" else activate(activation, x)
