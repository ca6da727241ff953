"""How a parent merges what its nodes learned: pure functions and one state machine over flat float32 vectors.

A node starts from weights that the parent sent (`base`, of some `version`), learns, and sends its own (`weights`). What
it learned is the delta, weights - base. The rule says what the parent does with it:

    elastic(α, β)   at once: θ ← θ + α (weights - θ); the node then moves to θ by β, and with β = 0 keeps its own
    gradient        at once: θ ← θ + delta / (1 + staleness), as asynchronous SGD (Zhang et al. 2016 for the divisor)
    average         in rounds, one delta of each node: θ ← θ + mean
    median          in rounds: θ ← θ + the median of each entry (Yin et al. 2018)
    trimmed(s)      in rounds: θ ← θ + the mean without the share s of the largest and of the smallest of each entry
    krum(f)         in rounds: θ ← θ + the delta nearest to its neighbours, with f hostile ones (Blanchard et al. 2017)

A round closes when every live node contributed, or at its deadline with at least `quorum` contributions. The last three
are for nodes that one does not control. Each merge makes a new version. Staleness counts the versions since the base:
of the nodes' own merges all at once, so for the first two rules it is divided by the number of nodes.
"""

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from sparring.errors import ConfigError
from sparring.wire.chunk import Array

RULES: Mapping[str, tuple[float, ...]] = {  # each with the defaults of its numbers
    "elastic": (0.9, 0.0),
    "gradient": (),
    "average": (),
    "median": (),
    "trimmed": (0.2,),
    "krum": (1.0,),
}
AT_ONCE = ("elastic", "gradient")
ROBUST_QUORUM = 3  # the median of two is their mean
NORMS_SEEN, NORMS_NEEDED = 64, 8  # accepted norms that the limit is made of, and how many make one
REASONS = ("not finite", "layout", "norm", "stale", "version")


@dataclass(frozen=True, slots=True)
class Rule:
    """A merge rule with its numbers, such as elastic(0.9, 0)."""

    name: str
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{one:g}' for one in self.numbers)})" if self.numbers else self.name

    @property
    def at_once(self) -> bool:
        """Whether each contribution is merged by itself."""
        return self.name in AT_ONCE

    @property
    def quorum(self) -> int:
        """Contributions without which a round does not close."""
        least = {"median": ROBUST_QUORUM, "trimmed": ROBUST_QUORUM}
        return int(self.numbers[0]) + ROBUST_QUORUM if self.name == "krum" else least.get(self.name, 1)

    @property
    def pull(self) -> float | None:
        """How far a node moves to the parent's weights; None: it goes on from them, and from what it learned since."""
        return self.numbers[1] if self.name == "elastic" else None


def named(text: str, known: Mapping[str, tuple[float, ...]], where: str) -> tuple[str, tuple[float, ...]]:
    """A name with numbers, "elastic(0.9, 0)", as both; numbers that are left out have their defaults."""
    found = re.fullmatch(r"([\w-]+)(?:\(([^()]*)\))?", text.strip())
    name, inside = (found[1], found[2]) if found else (text, None)
    if name not in known:
        raise ConfigError(f"there is no {text[:40]!r}", where=where, do=f"Choose one of {', '.join(known)}")
    try:
        given = tuple(float(part) for part in inside.split(",")) if inside else ()
    except ValueError:
        given = (float("nan"),)
    if len(given) > len(known[name]) or not np.isfinite(given).all():
        do = f"Write {name}({', '.join(map(str, known[name]))})" if known[name] else f"Write {name}"
        raise ConfigError(f"{text[:40]!r} does not read", where=where, do=do)
    return name, given + known[name][len(given) :]


def read_rule(text: str, where: str = "[nodes] merge") -> Rule:
    """The rule, or a ConfigError that says what is wrong with it."""
    name, numbers = named(text, RULES, where)
    limits = {"elastic": 1.0, "trimmed": 0.5, "krum": 1_000.0}
    if any(not 0 <= one <= limits[name] for one in numbers) or (name == "krum" and numbers[0] % 1):
        do = {"elastic": "Give shares from 0 to 1", "trimmed": "Give a share below 0.5"}
        raise ConfigError(f"{text!r}", where=where, do=do.get(name, "Count hostile nodes from 0"))
    return Rule(name, numbers)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one node learned since `base`, the parent's weights of that version as the node had them."""

    node: str
    version: int
    base: Array
    weights: Array


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused."""

    staleness: int = 4  # rounds, or merges of each node, since the base
    norm: float = 0.0  # of a delta; 0: `norm_factor` times the median of those accepted last
    norm_factor: float = 8.0


@dataclass(slots=True)
class Merger:
    """The parent's weights, and what becomes of contributions. It knows no clock, no thread and no socket."""

    rule: Rule
    weights: Array  # float32 [parameters]; replaced by each merge, never changed in place
    limits: Limits = field(default_factory=Limits)
    version: int = 0
    merged: int = 0  # contributions
    refused: Counter[str] = field(default_factory=Counter)
    _round: dict[str, tuple[Array, int]] = field(default_factory=dict)
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=NORMS_SEEN))

    def offer(self, given: Contribution, nodes: int) -> str:
        """Take a contribution while so many nodes live: "" where it counts, else the reason why it does not. Rules of
        rounds merge when `close_round` is called."""
        with np.errstate(all="ignore"):
            delta = given.weights - given.base if given.weights.shape == given.base.shape else given.weights
        stale = self.version - given.version
        if reason := self._wrong(delta, stale, nodes):
            self.refused[reason] += 1
            return reason
        if (norm := _norm(delta)) > 0:
            self._norms.append(norm)
        self.merged += 1
        if self.rule.name == "elastic":
            self.become(self.weights + np.float32(self.rule.numbers[0]) * (given.weights - self.weights))
        elif self.rule.name == "gradient":
            self.become(self.weights + delta / np.float32(1 + stale))
        else:
            self._round[given.node] = (delta, given.version)
        return ""

    def contributors(self) -> set[str]:
        """The nodes that contributed to the open round."""
        return set(self._round)

    def close_round(self, awaited: Set[str], *, late: bool) -> bool:
        """Merge the round if all `awaited` nodes contributed, or if it is `late`, and enough did; whether it was
        merged. Others do not stand in for them: who was awaited would be alone in the next round."""
        if not self._round or len(self._round) < self.rule.quorum or not (late or awaited <= self._round.keys()):
            return False
        deltas = [delta for delta, _ in self._round.values()]
        self._round = {}
        self.become(self.weights + combined(self.rule, deltas))
        return True

    def leave(self, node: str) -> None:
        """Forget what a node that was banned gave to the open round."""
        self._round.pop(node, None)

    def norm_limit(self) -> float:
        """The largest norm of a delta that is accepted now."""
        if self.limits.norm:
            return self.limits.norm
        return self.limits.norm_factor * float(np.median(self._norms)) if len(self._norms) >= NORMS_NEEDED else np.inf

    def become(self, weights: Array) -> None:
        """The next version."""
        self.weights, self.version = weights.astype(np.float32), self.version + 1

    def _wrong(self, delta: Array, stale: int, nodes: int) -> str:
        if delta.shape != self.weights.shape:
            return "layout"
        if not np.isfinite(delta).all():
            return "not finite"
        if stale < 0:
            return "version"
        if stale > self.limits.staleness * (max(1, nodes) if self.rule.at_once else 1):
            return "stale"
        return "norm" if _norm(delta) > self.norm_limit() else ""


def combined(rule: Rule, deltas: Sequence[Array]) -> Array:
    """One delta of several, by a rule of rounds."""
    stack = np.stack(deltas)
    if rule.name == "median":
        return np.asarray(np.median(stack, axis=0), np.float32)
    if rule.name == "trimmed":
        cut = min(max(1, int(rule.numbers[0] * len(stack))), (len(stack) - 1) // 2) if rule.numbers[0] else 0
        return np.asarray(np.sort(stack, axis=0)[cut : len(stack) - cut].mean(axis=0), np.float32)
    if rule.name == "krum":
        return np.asarray(stack[_krum(stack, int(rule.numbers[0]))], np.float32)
    return np.asarray(stack.mean(axis=0), np.float32)


def _krum(stack: Array, hostile: int) -> int:
    """The delta whose n - f - 2 nearest neighbours are nearest."""
    wide = stack.astype(np.float64)
    products = wide @ wide.T
    squares = products.diagonal()[:, None] + products.diagonal()[None, :] - 2 * products  # of the distances
    near = max(1, len(stack) - hostile - 2)
    np.fill_diagonal(squares, -np.inf)  # each is nearest to itself, and that does not count
    scores = np.sort(squares, axis=1)[:, 1 : near + 1].sum(axis=1)
    return int(scores.argmin())


def _norm(delta: Array) -> float:
    return float(np.linalg.norm(delta.astype(np.float64)))
