"""Values by quantiles: the network that learns has N numbers for each action, the one that acts has their mean.

A mean of linear heads is one linear head, so what acts is an ordinary network with one value for each action:
NumPy, ONNX and JavaScript run it as any other.
"""

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace
from torch import Tensor

from sparring.wire.chunk import Array
from sparring.wire.network import Head, NetworkSpec, Weights

STATE_VALUE = "state_value"  # the head of a dueling network's values, N of them


def spread(spec: NetworkSpec, quantiles: int) -> NetworkSpec:
    """The network that learns `quantiles` for each action of the acting network `spec`."""
    heads: list[Head] = []
    for head in spec.heads:
        if head.name != "logits":
            heads.append(head)
            continue
        heads.append(Head("logits", head.units * quantiles))
        if head.dueling:
            heads.append(Head(STATE_VALUE, quantiles))
    return replace(spec, heads=tuple(heads))


def quantiles_of(out: Mapping[str, Tensor], quantiles: int) -> Tensor:
    """[n, actions, quantiles] of the outputs of a network that `spread` made; dueling is done for each quantile."""
    found = out["logits"].reshape(len(out["logits"]), -1, quantiles)
    if STATE_VALUE in out:
        found = found - found.mean(1, keepdim=True) + out[STATE_VALUE].unsqueeze(1)
    return found


def folded(weights: Weights, quantiles: int) -> Weights:
    """Parameters of the acting network: those of the one that learns, with the mean of the quantiles in its head."""
    acting = {name: value for name, value in weights.items() if name.split("/")[0] not in ("logits", STATE_VALUE)}
    for part in ("weight", "bias"):
        value = weights[f"logits/{part}"]
        acting[f"logits/{part}"] = _mean(value.reshape(-1, quantiles, *value.shape[1:]))
        if f"{STATE_VALUE}/{part}" in weights:
            acting[f"logits/value/{part}"] = _mean(weights[f"{STATE_VALUE}/{part}"][None])
    return acting


def _mean(value: Array) -> Array:
    return np.ascontiguousarray(value.mean(axis=1, dtype=np.float64), np.float32)
