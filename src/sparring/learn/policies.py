"""How outputs become actions. NumPy alone: the client, the gateway and the actors choose by the same lines.

A "categorical" policy samples its logits or takes the largest; a "greedy" one (values as logits)
takes the largest, and explores by ε. `strength` mixes the best action with a uniform legal one, so that
its log-probability stays exact: 1 is the model at its best, 0 is chance.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.wire.chunk import Array


@dataclass(frozen=True, slots=True)
class Choice:
    """Actions [n] and the log-probability with which each was chosen, exploration included."""

    action: Array  # int32 [n]
    logp: Array  # float32 [n]


def masked(logits: Array, legal: Array | None) -> Array:
    """Logits with -inf where an action is not legal."""
    return logits if legal is None else np.where(legal, logits, -np.inf)


def log_softmax(logits: Array) -> Array:
    """log p over the last axis; -inf stays -inf."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def sample(logits: Array, legal: Array | None, rng: Generator) -> Choice:
    """Drawn from softmax(logits) by inversion: one uniform number for each row."""
    logp = log_softmax(masked(logits, legal))
    cumulative = np.cumsum(np.exp(logp), axis=-1)
    drawn = rng.random((len(logits), 1)) * cumulative[:, -1:]
    action = (cumulative <= drawn).sum(axis=-1).astype(np.int32)
    return Choice(action, _taken(logp, action))


def best(logits: Array, legal: Array | None, rng: Generator, epsilon: float | Array = 0.0) -> Choice:
    """The largest logit, or with probability ε (a number, or one for each row) a uniform legal action."""
    values = masked(logits, legal)
    top = values.argmax(axis=-1)
    allowed = np.ones(logits.shape, bool) if legal is None else legal.astype(bool)
    counts = allowed.sum(axis=-1)
    rate = np.broadcast_to(np.asarray(epsilon, np.float64), top.shape)
    rank = np.floor(rng.random(len(top)) * counts)  # the rank-th legal action, counted along the row
    chance = (np.cumsum(allowed, axis=-1) <= rank[:, None]).sum(axis=-1)
    action = np.where(rng.random(len(top)) < rate, chance, top).astype(np.int32)
    probability = rate / counts + (1 - rate) * (action == top)
    return Choice(action, np.log(probability).astype(np.float32))


def choose(logits: Array, legal: Array | None, rng: Generator, strength: float | None = None) -> Choice:
    """What a deployed model does: its best action, weakened by `strength` where that is given."""
    return best(logits, legal, rng, 0.0 if strength is None else 1.0 - strength)


def _taken(logp: Array, action: Array) -> Array:
    return np.take_along_axis(logp, action[:, None].astype(np.int64), axis=-1)[:, 0].astype(np.float32)
