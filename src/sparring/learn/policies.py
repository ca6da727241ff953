"""How outputs become actions. NumPy alone: the client, the gateway and the actors choose by the same lines.

A "categorical" policy samples its logits or takes the largest; a "greedy" one (values as logits)
takes the largest, and explores by ε. A "gaussian" one draws u ~ N(mean, exp(log_std)²) and does u where the
game sets no bounds, and else low + (high − low)(tanh u + 1)/2, so that no action ever has to be cut and its
density is exact; learn/distributions.py has the same in torch. `strength` mixes the best action with a uniform
legal one, so that its log-probability stays exact: 1 is the model at its best, 0 is chance.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.games.spec import Leaf
from sparring.wire.chunk import Array

LOG_STD = (-5.0, 2.0)  # of a Gaussian, whatever a network says


@dataclass(frozen=True, slots=True)
class Choice:
    """Actions [n] and the log-probability with which each was chosen, exploration included."""

    action: Array  # int32 [n], or float32 [n, numbers]
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


def draw(mean: Array, log_std: Array, bounds: tuple[float, float] | None, rng: Generator) -> Choice:
    """One action [n, numbers] from each Gaussian, squashed into the bounds where there are any."""
    noise = rng.standard_normal(mean.shape, np.float32)
    raw = mean + np.exp(clamped(log_std)) * noise
    return Choice(squashed(raw, bounds), log_density(raw, mean, log_std, bounds))


def squashed(raw: Array, bounds: tuple[float, float] | None) -> Array:
    """What is done for a raw number: itself, or its place between the bounds."""
    if bounds is None:
        return raw
    low, high = bounds
    return np.asarray(np.clip(low + (high - low) * 0.5 * (np.tanh(raw) + 1), low, high), np.float32)


def log_density(raw: Array, mean: Array, log_std: Array, bounds: tuple[float, float] | None) -> Array:
    """float32 [n]: log density of the action that `raw` becomes. log(1 − tanh²u) is 2(log 2 − u − softplus(−2u))."""
    spread = clamped(log_std)
    each = -0.5 * ((raw - mean) * np.exp(-spread)) ** 2 - spread - 0.5 * np.log(2 * np.pi)
    if bounds is not None:
        low, high = bounds
        each = each - np.log(0.5 * (high - low)) - 2 * (np.log(2.0) - raw - np.logaddexp(0.0, -2 * raw))
    return np.asarray(each.sum(axis=-1), np.float32)


def clamped(log_std: Array) -> Array:
    """Between two limits that any policy keeps: neither certain nor lost."""
    return np.clip(log_std, *LOG_STD)


def bounds_of(action: Leaf) -> tuple[float, float] | None:
    """Where a box lies; None where it lacks a bound on either side."""
    return None if action.low is None or action.high is None else (float(action.low), float(action.high))
