"""Each kind of layer in torch; nets/numpy_layers.py and nets/onnx_layers.py say the same in their terms.

`pair` gives the weight and the bias of a place, so that nothing here holds a parameter.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sparring.wire.network import Activation, Conv, Dense, Entities, Gru, Layer, Memory, Pool

HIDDEN = -1e9  # the score of an entity that is not there

Pair = Callable[[str], tuple[Tensor, Tensor]]


def passed(layer: Layer, place: str, pair: Pair, x: Tensor) -> Tensor:
    """What one layer of a stack makes of x: [n, channels, height, width] or [n, numbers]."""
    if isinstance(layer, Conv):
        return followed(layer.activation, functional.conv2d(x, *pair(place), layer.stride, layer.padding))
    if isinstance(layer, Dense):
        return followed(layer.activation, functional.linear(x.flatten(1), *pair(place)))
    if isinstance(layer, Pool):
        return functional.max_pool2d(x, layer.kernel, layer.stride, layer.padding)
    first, second = pair(f"{place}/first"), pair(f"{place}/second")
    y = activated(layer.activation, x)
    if x.dim() == 4:
        y = followed(layer.activation, functional.conv2d(y, *first, padding=layer.kernel // 2))
        y = functional.conv2d(y, *second, padding=layer.kernel // 2)
    else:
        y = functional.linear(followed(layer.activation, functional.linear(y, *first)), *second)
    return activated(layer.out, x + y)


def remembered(
    memory: Memory, place: str, pair: Pair, x: Tensor, state: Tensor, starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The memory's output [time, n, units] for x [time, n, numbers], and its state after the last step."""
    (weight, bias), (recurrent, offset) = pair(f"{place}/input"), pair(f"{place}/hidden")
    keep = None if starts is None else (~starts.bool()).to(x.dtype).unsqueeze(-1)
    outputs = []
    # One cell a step: as fast as the fused sequence here, and a reset may stand anywhere.
    for t, seen in enumerate(x):
        if keep is not None:
            state = state * keep[t]
        if isinstance(memory, Gru):
            state = hidden = torch.gru_cell(seen, state, weight, recurrent, bias, offset)
        else:
            held = (state[:, : memory.units], state[:, memory.units :])
            hidden, cell = torch.lstm_cell(seen, held, weight, recurrent, bias, offset)
            state = torch.cat((hidden, cell), 1)
        outputs.append(hidden)
    return torch.stack(outputs), state


def encoded(encoder: Entities, place: str, pair: Pair, x: Tensor, count: Tensor) -> Tensor:
    """Sets [n, most, features] of which the first `count` [n] are there, as [n, units]."""
    n, most, _ = x.shape
    there = torch.arange(most, dtype=torch.float32, device=x.device) < count.float().unsqueeze(1)
    column = there.unsqueeze(2)
    x = functional.relu(functional.linear(torch.where(column, x, 0.0), *pair(f"{place}/embed")))
    size = encoder.units // encoder.heads
    for block in range(encoder.blocks):
        at = f"{place}/{block}"
        parts = functional.linear(x, *pair(f"{at}/attend")).reshape(n, most, 3, encoder.heads, size)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [n, heads, most, size]
        scores = query @ key.transpose(2, 3) / math.sqrt(size)
        share = scores.masked_fill(~there[:, None, None, :], HIDDEN).softmax(3)
        mixed = (share @ value).transpose(1, 2).reshape(n, most, encoder.units)
        x = x + functional.linear(mixed, *pair(f"{at}/join"))
        x = x + functional.linear(functional.relu(functional.linear(x, *pair(f"{at}/first"))), *pair(f"{at}/second"))
    if encoder.pool == "mean":
        return torch.where(column, x, 0.0).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
    return torch.where(there.any(1, keepdim=True), torch.where(column, x, -math.inf).amax(1), 0.0)


def activated(activation: Activation, x: Tensor) -> Tensor:
    """x behind that activation."""
    if activation == "relu":
        return functional.relu(x)
    return torch.tanh(x) if activation == "tanh" else x


def followed(activation: Activation, x: Tensor) -> Tensor:
    """`activated` in the place of x, which nobody else sees: no product needs its own result to find its gradient."""
    return functional.relu(x, inplace=True) if activation == "relu" else activated(activation, x)
