"""How outputs become actions. NumPy alone: the client, the gateway and the actors choose by the same lines.

A Policy is what an actor explores with; a card names the built-in one (BUILT_IN) that deploys what was learned, and
never code. A user's own is loaded by nets/user_code.py, which neither client nor gateway imports.

A "categorical" policy samples its logits or takes the largest (its card says which), for each entry of a multi-discrete
action on its own; a
"greedy" one (values as logits) takes the largest, and explores by ε. A "gaussian" one draws u ~ N(mean, exp(log_std)²)
and does u where the game sets no bounds, and else low + (high − low)(tanh u + 1)/2, so that no action ever has to be
cut and its density is exact; nets/distributions.py has the same in torch. `strength` mixes the best action with a
uniform legal one, so that its log-probability stays exact: 1 is the model at its best, 0 is chance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError, UserCodeError
from sparring.games.spec import Leaf
from sparring.wire.chunk import Array

NEARLY = 0.9  # of the best choice's probability or value: so good is nearly as good
LOG_STD = (-5.0, 2.0)  # of a Gaussian, whatever a network says: neither certain nor lost


@dataclass(frozen=True, slots=True)
class Choice:
    """Actions [n] and the log-probability with which each was chosen, exploration included."""

    action: Array  # int32 [n], or [n, *shape] of the action leaf
    logp: Array  # float32 [n]


def checked_choice(policy: "Policy", choice: Choice, rows: int) -> Choice:
    """What `explore` of a policy returned for so many rows; UserCodeError where it is none. Built-in ones never err."""
    wrong = f"a {type(choice).__name__}"
    if isinstance(choice, Choice):
        action, logp = np.shape(choice.action), np.shape(choice.logp)
        if action[:1] == logp == (rows,):
            return choice
        wrong = f"actions of shape {list(action)} and log-probabilities of shape {list(logp)} for {rows} rows"
    do = "Return Choice(action, logp), arrays with one entry for each row (`from sparring.nets.policies import Choice`)"
    raise UserCodeError(f"explore() returned {wrong}", where=f"your policy {type(policy).__name__}", do=do)


class Policy(Protocol):
    """How an actor chooses. A user's own is a class that is made with the action leaf of the seat."""

    deployed: str  # a name of BUILT_IN: how a deployed model chooses with the same outputs

    def explore(self, out: Mapping[str, Array], legal: Array | None, rng: Generator, epsilon: float | Array) -> Choice:
        """One action [n, *shape] for each row of the network's outputs, legal where `legal` says which are, with
        the log-probability (or density) with which it was drawn. ε is a number, or one for each row."""


class CategoricalPolicy:
    """Samples softmax(logits), one softmax for each entry of the action, and a share ε by chance alone."""

    deployed = "categorical"

    def __init__(self, action: Leaf) -> None:
        _check(self.deployed, action, bool(action.choices), "discrete and multi-discrete ones")
        self._action = action

    def explore(self, out: Mapping[str, Array], legal: Array | None, rng: Generator, epsilon: float | Array) -> Choice:
        return of_entries(
            self._action, out["logits"], legal, lambda logits, mask: sample(mixed(logits, mask, epsilon), mask, rng)
        )


class GreedyPolicy:
    """Takes the largest logit, and with probability ε any."""

    deployed = "greedy"

    def __init__(self, action: Leaf) -> None:
        _check(self.deployed, action, action.kind == "discrete", "discrete ones")

    def explore(self, out: Mapping[str, Array], legal: Array | None, rng: Generator, epsilon: float | Array) -> Choice:
        return best(out["logits"], legal, rng, epsilon)


class GaussianPolicy:
    """Draws from the squashed Gaussian of "mean" and "log_std"."""

    deployed = "gaussian"

    def __init__(self, action: Leaf) -> None:
        _check(self.deployed, action, action.kind == "box" and action.dtype.startswith("float"), "a box of floats")
        self.bounds, self._shape, self._dtype = bounds_of(action), action.shape, action.dtype

    def explore(self, out: Mapping[str, Array], legal: Array | None, rng: Generator, epsilon: float | Array) -> Choice:
        return self.with_noise(out, rng.standard_normal(out["mean"].shape, np.float32))

    def with_noise(self, out: Mapping[str, Array], noise: Array) -> Choice:
        """The actions that standard normal numbers [n, numbers] lead to."""
        choice = draw(out["mean"], out["log_std"], self.bounds, noise)
        action = choice.action.reshape(len(choice.action), *self._shape)
        return Choice(action.astype(self._dtype, copy=False), choice.logp)


BUILT_IN: dict[str, Callable[[Leaf], Policy]] = {
    policy.deployed: policy for policy in (CategoricalPolicy, GreedyPolicy, GaussianPolicy)
}


def masked(logits: Array, legal: Array | None) -> Array:
    """Logits with -inf where an action is not legal."""
    return logits if legal is None else np.where(legal, logits, -np.inf)


def log_softmax(logits: Array) -> Array:
    """log p over the last axis; -inf stays -inf."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def sample(logits: Array, legal: Array | None, rng: Generator) -> Choice:
    """Drawn from softmax(logits) by inversion: one uniform number for each row."""
    return sample_at(logits, legal, rng.random(len(logits)))


def sample_at(logits: Array, legal: Array | None, chance: Array) -> Choice:
    """What the uniform numbers `chance` [n] draw from softmax(logits)."""
    values = masked(logits, legal)
    shifted = values - values.max(axis=-1, keepdims=True)
    cumulative = np.exp(shifted).cumsum(axis=-1)
    total = cumulative[:, -1]
    action = (cumulative <= (chance * total)[:, None]).sum(axis=-1, dtype=np.int32)
    logp = shifted[np.arange(len(action)), action] - np.log(total)
    return Choice(action, logp.astype(np.float32, copy=False))


def best(logits: Array, legal: Array | None, rng: Generator | None, epsilon: float | Array = 0.0) -> Choice:
    """The largest logit, or with probability ε (a number, or one for each row) a uniform legal action; without `rng`
    nothing is drawn."""
    top = masked(logits, legal).argmax(axis=-1)
    if rng is None:
        return Choice(top.astype(np.int32), np.zeros(len(top), np.float32))
    allowed = np.ones(logits.shape, bool) if legal is None else legal.astype(bool)
    counts = allowed.sum(axis=-1)
    rate = np.broadcast_to(np.asarray(epsilon, np.float64), top.shape)
    rank = np.floor(rng.random(len(top)) * counts)  # the rank-th legal action, counted along the row
    chance = (np.cumsum(allowed, axis=-1) <= rank[:, None]).sum(axis=-1)
    action = np.where(rng.random(len(top)) < rate, chance, top).astype(np.int32)
    probability = rate / counts + (1 - rate) * (action == top)
    return Choice(action, np.log(probability).astype(np.float32))


def choose(
    action: Leaf,
    logits: Array,
    legal: Array | None,
    rng: Generator | None,
    strength: float | None = None,
    *,
    samples: bool = False,
) -> Choice:
    """What a deployed model does: its best action, or with `samples` (and `rng`) one drawn from its probabilities;
    weakened by `strength` where that and `rng` are given."""
    epsilon = 0.0 if strength is None else 1.0 - strength
    if samples and rng is not None:
        return of_entries(action, logits, legal, lambda scores, mask: sample(mixed(scores, mask, epsilon), mask, rng))
    return of_entries(action, logits, legal, lambda scores, mask: best(scores, mask, rng, epsilon))


def nearly_best(scores: Array, legal: Array | None, *, values: bool) -> Array:
    """Logits of the choices that are nearly as good as the best: those at least NEARLY as probable, by their
    probability; of `values` those within 1 - NEARLY of the best one's size, alike. -inf elsewhere."""
    allowed = masked(np.asarray(scores, np.float32), legal)
    top = allowed.max(axis=-1, keepdims=True)
    if values:
        return np.where(allowed >= top - (1 - NEARLY) * np.abs(top), np.float32(0), -np.inf)
    return np.where(allowed >= top + np.log(NEARLY), allowed, -np.inf)


def mixed(logits: Array, legal: Array | None, epsilon: float | Array) -> Array:
    """Logits of softmax(logits) that with probability ε, a number or one for each row, is a uniform legal action
    instead."""
    if not np.any(epsilon):
        return logits
    rate = np.asarray(epsilon)[..., None]
    allowed = np.ones(logits.shape, bool) if legal is None else legal.astype(bool)
    shares = (1 - rate) * np.exp(log_softmax(masked(logits, legal))) + rate * allowed / allowed.sum(-1)[:, None]
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares), np.float32)


def of_entries(
    action: Leaf, logits: Array, legal: Array | None, pick: Callable[[Array, Array | None], Choice]
) -> Choice:
    """Actions [n, *shape] of which `pick` chooses every entry by its own logits, and the log-probability of the whole.

    Logits and masks [n, sum of choices] have the entries side by side.
    """
    if action.kind == "discrete":
        return pick(logits, legal)
    ends = np.cumsum(action.choices)[:-1]
    masks = [None] * len(action.choices) if legal is None else np.split(legal, ends, axis=1)
    entries = [pick(part, mask) for part, mask in zip(np.split(logits, ends, axis=1), masks, strict=True)]
    chosen = np.stack([entry.action for entry in entries], axis=1).astype(action.dtype)
    logp = np.stack([entry.logp for entry in entries]).sum(axis=0)
    return Choice(chosen.reshape(len(chosen), *action.shape), logp)


def draw(mean: Array, log_std: Array, bounds: tuple[float, float] | None, noise: Array) -> Choice:
    """One action [n, numbers] of each Gaussian by standard normal noise, squashed into bounds where there are any."""
    raw = mean + np.exp(np.clip(log_std, *LOG_STD)) * noise
    return Choice(squashed(raw, bounds), log_density(raw, mean, log_std, bounds))


def squashed(raw: Array, bounds: tuple[float, float] | None) -> Array:
    """What is done for a raw number: itself, or its place between the bounds."""
    if bounds is None:
        return raw
    low, high = bounds
    return np.asarray(np.clip(low + (high - low) * 0.5 * (np.tanh(raw) + 1), low, high), np.float32)


def log_density(raw: Array, mean: Array, log_std: Array, bounds: tuple[float, float] | None) -> Array:
    """float32 [n]: log density of the action that `raw` becomes. log(1 − tanh²u) is 2(log 2 − u − softplus(−2u))."""
    spread = np.clip(log_std, *LOG_STD)
    each = -0.5 * ((raw - mean) * np.exp(-spread)) ** 2 - spread - 0.5 * np.log(2 * np.pi)
    if bounds is not None:
        low, high = bounds
        each = each - np.log(0.5 * (high - low)) - 2 * (np.log(2.0) - raw - np.logaddexp(0.0, -2 * raw))
    return np.asarray(each.sum(axis=-1), np.float32)


def bounds_of(action: Leaf) -> tuple[float, float] | None:
    """Where a box lies; None where it lacks a bound on either side."""
    return None if action.low is None or action.high is None else (float(action.low), float(action.high))


def _check(policy: str, action: Leaf, suits: bool, wanted: str) -> None:
    if not suits or (action.kind == "box" and action.low is not None and action.low == action.high):
        kind = f"{action.kind} ({action.dtype}, from {action.low} to {action.high})"
        raise ConfigError(f"its actions are {kind}", where=f"policy {policy!r}", do=f"It chooses {wanted}")
