"""Trajectories as rows for a loss: padding left out, network outputs, bootstrap values, minibatches of streams.

A batch is [time, streams] with padding at the end of streams that moved seldom. A loss sees true steps alone, as flat
rows [steps, …] in the order of time, so padding can have no gradient.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparring.games.protocol import RUNNING
from sparring.learn.protocol import Batch
from sparring.nets.distributions import Outputs
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.chunk import Array


def true_steps(batch: Batch, column: Array) -> Tensor:
    """Those rows of a column [time, streams, …] that are no padding, [steps, …]; not copied where there is none."""
    if batch.mask is None or batch.mask.all():
        return tensor(column.reshape(-1, *column.shape[2:]))
    return tensor(column[batch.mask])


def actions(batch: Batch) -> Tensor:
    """What was done at each true step; choices as int64, which torch gathers by."""
    done = true_steps(batch, batch.action)
    return done if done.is_floating_point() else done.long()


def legal_actions(batch: Batch, values: Tensor) -> Tensor:
    """Which actions were legal at each true step, as bool with the shape of `values` [steps, choices]."""
    if batch.legal is None:
        return torch.ones_like(values, dtype=torch.bool)
    return true_steps(batch, batch.legal).bool()


def grid(batch: Batch, rows: Tensor) -> Array:
    """Flat rows [steps] back in their places, [time, streams]; 0 where there is padding."""
    values = rows.detach().numpy()
    if batch.mask is None or batch.mask.all():
        return np.asarray(values.reshape(batch.reward.shape))
    places = np.zeros(batch.reward.shape, values.dtype)
    places[batch.mask] = values
    return places


def outputs(net: Network, batch: Batch) -> Outputs:
    """The network's heads at each true step, [steps, …].

    With a memory each stream is unrolled from the state with which its first step was decided; an episode that begins
    within it begins with an empty memory.
    """
    if net.spec.memory is None:
        heads: Outputs = net({name: true_steps(batch, leaf) for name, leaf in batch.observation.items()})
        return heads
    state = None if batch.state is None else tensor(batch.state)
    heads = net.unroll(tensors(batch.observation), state, tensor(starts(batch)))
    keep = tensor(np.ones_like(batch.ending, bool) if batch.mask is None else batch.mask)
    return {head.name: heads[head.name][keep] for head in net.spec.heads}


def starts(batch: Batch) -> Array:
    """bool [time, streams]: an episode begins at that step, as the one before ended."""
    first = np.zeros_like(batch.ending[:1], bool)  # whatever began there, the given state is right
    return np.concatenate([first, batch.ending[:-1] != RUNNING])


def bootstrap(net: Network, batch: Batch) -> Array:
    """float32 [streams]: the value of what each stream sees after its last step."""
    with torch.no_grad():
        state = None if batch.next_state is None else tensor(batch.next_state)
        value: Array = net(tensors(batch.next_observation), state)["value"].numpy()
    return value


def parts(batch: Batch, rng: np.random.Generator, steps: int) -> list[Array]:
    """The streams that have steps, shuffled, in groups of about so many steps."""
    time, streams = batch.reward.shape
    used = np.arange(streams) if batch.mask is None else np.flatnonzero(batch.mask.any(axis=0))
    count = max(1, round(len(used) * time / steps))
    return [part for part in np.array_split(rng.permutation(used), count) if len(part)]


BY_STREAM = ("next_observation", "state", "next_state", "version")  # [streams, …]; others are [time, streams, …]


def of_streams(batch: Batch, streams: Array) -> Batch:
    """The part of the batch that those streams played."""

    def picked(name: str, column: Any) -> Any:
        if isinstance(column, Mapping):
            return {leaf: picked(name, values) for leaf, values in column.items()}
        if not isinstance(column, np.ndarray):
            return column
        return column[streams] if name in BY_STREAM else column[:, streams]

    return replace(batch, **{field.name: picked(field.name, getattr(batch, field.name)) for field in fields(batch)})
