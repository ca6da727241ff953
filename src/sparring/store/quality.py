"""Whether the data is enough to learn from: what is there, what is missing, and which algorithms it suits.

One pass over the episodes and one over the chunks; what is kept in memory are counts, and one number for each seat.
"""

import hashlib
import itertools
import math
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Array, Chunk

MOST_ACTIONS = 4_096  # distinct actions counted one by one
MOST_FINGERPRINTS = 1_000_000  # endings remembered to find doubles
RARE = 0.01  # an action tried less often than this share is rarely tried


@dataclass(frozen=True, slots=True)
class Drift:
    """How far two versions of a game differ in what was seen or done."""

    versions: tuple[str, str]
    what: str
    shift: float  # observation leaves: standard deviations; actions: total variation, 0 to 1


@dataclass(frozen=True, slots=True)
class Quality:
    """What `quality` found. Shares are of steps unless said otherwise."""

    episodes: int = 0
    incomplete_share: float = 0.0  # of episodes
    duplicate_share: float = 0.0  # of endings that equal another's in every number, under another id
    chunks: int = 0
    steps: int = 0
    actions: dict[str, float] = field(default_factory=dict)  # share of each, where they can be counted
    action_entropy: float | None = None  # 1: all tried alike; None: not discrete
    rarely_tried: tuple[str, ...] = ()
    logp_share: float = 0.0
    legal_share: float = 0.0
    rewarded_share: float = 0.0  # of steps with a reward other than 0
    returns: dict[str, float] = field(default_factory=dict)
    by_player: dict[str, float] = field(default_factory=dict)  # the largest ten
    by_uploader: dict[str, float] = field(default_factory=dict)
    by_actor: dict[str, float] = field(default_factory=dict)  # person, model, script
    by_source: dict[str, float] = field(default_factory=dict)
    drift: tuple[Drift, ...] = ()
    suits: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class Moments:
    """Mean and deviation of each entry of an array leaf over all steps."""

    n: int = 0
    sums: Array = field(default_factory=lambda: np.zeros(1))
    squares: Array = field(default_factory=lambda: np.zeros(1))

    def add(self, rows: Array, most_entries: int = 1_024) -> None:
        """More steps, [steps, *shape]; a leaf with more entries than `most_entries` counts as one."""
        flat = rows.reshape(len(rows), -1).astype(np.float64)
        if flat.shape[1] > most_entries:
            flat = flat.mean(axis=1, keepdims=True)
        if not self.n:
            self.sums, self.squares = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
        self.n += len(flat)
        self.sums += flat.sum(axis=0)
        self.squares += (flat * flat).sum(axis=0)

    def shift(self, other: "Moments") -> float:
        """The largest difference of two means, in standard deviations of both together."""
        if not self.n or not other.n or self.sums.shape != other.sums.shape:
            return math.inf if self.n and other.n else 0.0
        means = self.sums / self.n, other.sums / other.n
        spreads = [m.squares / m.n - mean**2 for m, mean in zip((self, other), means, strict=True)]
        deviation = np.sqrt(np.maximum((spreads[0] + spreads[1]) / 2, 0))
        apart = np.abs(means[0] - means[1])
        # An entry that never moves has no scale of its own: any difference there is a large one.
        return float(np.where(apart > 1e-9, apart / np.maximum(deviation, 1e-6), 0.0).max())


@dataclass(slots=True)
class _Version:
    """What one version of the game looked like."""

    leaves: dict[str, Moments] = field(default_factory=dict)
    actions: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Totals:
    """Everything that is summed up over the chunks."""

    chunks: int = 0
    steps: int = 0
    with_logp: int = 0
    with_legal: int = 0
    rewarded: int = 0
    discrete: bool = True
    ends: int = 0
    doubles: int = 0
    fingerprints: set[bytes] = field(default_factory=set)
    actors: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    players: Counter[str] = field(default_factory=Counter)
    uploaders: Counter[str] = field(default_factory=Counter)
    versions: dict[str, _Version] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        head, columns = chunk.header, chunk.columns
        self.chunks += 1
        self.steps += head.steps
        self.with_logp += head.steps * ("behaviour_logp" in columns)
        self.with_legal += head.steps * ("legal" in columns)
        if "reward" in columns:
            self.rewarded += int(np.count_nonzero(columns["reward"]))
        self.actors[head.actor.partition(":")[0]] += head.steps
        self.sources[head.source] += head.steps
        self.players[head.player or "(none)"] += head.steps
        self.uploaders[head.uploader or "(none)"] += head.steps
        version = self.versions.setdefault(head.version, _Version())
        for name, column in columns.items():
            if name.startswith("observation/"):
                # Seats may see different things under one name, so they are kept apart.
                version.leaves.setdefault(f"seat {head.seat} {name}", Moments()).add(column)
        self._add_actions(columns.get("action"), version)
        if head.ending != "running":
            self._add_end(chunk)

    def _add_actions(self, actions: Array | None, version: _Version) -> None:
        if (
            actions is None
            or actions.ndim != 1
            or actions.dtype.kind not in "iu"
            or len(version.actions) > MOST_ACTIONS
        ):
            self.discrete = False
            return
        values, counts = np.unique(actions, return_counts=True)
        version.actions.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def _add_end(self, chunk: Chunk) -> None:
        self.ends += 1
        fingerprint = hashlib.blake2b(f"{chunk.header.seat} {chunk.header.first_step}".encode(), digest_size=8)
        for name in sorted(chunk.columns):
            fingerprint.update(np.ascontiguousarray(chunk.columns[name]).data)
        found = fingerprint.digest()
        self.doubles += found in self.fingerprints
        if len(self.fingerprints) < MOST_FINGERPRINTS:
            self.fingerprints.add(found)


def quality(store: Store, query: Query, *, progress: Callable[[int], None] = lambda chunks: None) -> Quality:
    """Look at everything in `query`. `progress` is called with the number of chunks read, every 4,096."""
    tally = _Totals()
    for chunk in store.read(query):
        tally.add(chunk)
        if tally.chunks % 4_096 == 0:
            progress(tally.chunks)
    episodes = incomplete = 0
    returns = array("d")
    for record in store.episodes(query):
        episodes += 1
        incomplete += not record.complete
        returns.extend(seat.reward for seat in record.seats if seat.complete)
    return _with_advice(_report(tally, episodes, incomplete, _spread(np.asarray(returns))))


def _spread(values: Array) -> dict[str, float]:
    """Mean, deviation, extremes and quantiles; empty where there are no values."""
    if not len(values):
        return {}
    quantiles = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist()
    names = ("min", "p10", "median", "p90", "max")
    return {"mean": float(values.mean()), "sd": float(values.std()), **dict(zip(names, quantiles, strict=True))}


def _shares(counts: Counter[str], most: int | None = None) -> dict[str, float]:
    """Each name's share, the largest first."""
    return {name: count / counts.total() for name, count in counts.most_common(most)}


def _report(tally: _Totals, episodes: int, incomplete: int, returns: dict[str, float]) -> Quality:
    steps = max(tally.steps, 1)
    actions = sum((version.actions for version in tally.versions.values()), Counter[int]()) if tally.discrete else {}
    tried = sum(actions.values()) or 1
    shares = {str(action): count / tried for action, count in sorted(actions.items())}
    return Quality(
        episodes=episodes,
        incomplete_share=incomplete / max(episodes, 1),
        duplicate_share=tally.doubles / max(tally.ends, 1),
        chunks=tally.chunks,
        steps=tally.steps,
        actions=shares,
        action_entropy=_entropy(list(shares.values())) if tally.discrete and shares else None,
        rarely_tried=tuple(action for action, share in shares.items() if share < RARE),
        logp_share=tally.with_logp / steps,
        legal_share=tally.with_legal / steps,
        rewarded_share=tally.rewarded / steps,
        returns=returns,
        by_player=_shares(tally.players, 10),
        by_uploader=_shares(tally.uploaders, 10),
        by_actor=_shares(tally.actors),
        by_source=_shares(tally.sources),
        drift=_drift(tally.versions, discrete=tally.discrete),
    )


def _entropy(shares: list[float]) -> float:
    """Of the actions that were tried, as a part of the most it could be."""
    if len(shares) < 2:
        return 0.0
    return -sum(share * math.log(share) for share in shares if share > 0) / math.log(len(shares))


def _drift(versions: dict[str, _Version], *, discrete: bool) -> tuple[Drift, ...]:
    """Each version against the one before it, in order of name; the largest shifts first."""
    found = []
    names = sorted(versions)
    for old, new in itertools.pairwise(names):
        before, after = versions[old], versions[new]
        for leaf in sorted(before.leaves.keys() & after.leaves.keys()):
            found.append(Drift((old, new), leaf, before.leaves[leaf].shift(after.leaves[leaf])))
        if discrete:
            totals = sum(before.actions.values()) or 1, sum(after.actions.values()) or 1
            apart = (
                before.actions[a] / totals[0] - after.actions[a] / totals[1] for a in before.actions | after.actions
            )
            found.append(Drift((old, new), "action", sum(map(abs, apart)) / 2))
    return tuple(sorted(found, key=lambda drift: -drift.shift))


def _with_advice(found: Quality) -> Quality:
    """The same with what it suits and what it lacks, in words."""
    suits, missing = [], []
    if found.steps < 1_000:
        missing.append(f"steps: {found.steps} are too few to learn anything from; 1,000 are the least, 100,000 better")
    else:
        people = found.by_actor.get("person", 0.0)
        suits.append(f"bc: imitates the players; {people:.0%} of the steps are people's")
        if found.action_entropy is not None and not found.rarely_tried and found.rewarded_share > 0:
            suits.append("offline dqn: discrete actions, all of them tried, and rewards to learn from")
        if found.logp_share > 0.95:
            suits.append("importance-weighted (ppo, v-trace, evaluation): the log-probabilities are there")
    missing += _lacks(found)
    return replace(found, suits=tuple(suits), missing=tuple(missing))


def _lacks(found: Quality) -> list[str]:
    top = next(iter(found.by_player.items()), ("", 0.0))
    rare = ", ".join(found.rarely_tried[:8])
    logp, rewarded = f"{found.logp_share:.0%} of the steps", f"{found.rewarded_share:.2%} of the steps"
    tests = [
        (found.incomplete_share > 0.2, f"whole episodes: {found.incomplete_share:.0%} have a gap or no end"),
        (found.duplicate_share > 0.01, f"variety: {found.duplicate_share:.0%} of the endings are copies of another"),
        (bool(rare), f"coverage: tried in under {RARE:.0%} of the steps: {rare}"),
        (found.action_entropy == 0.0, "coverage: only one action was ever tried"),
        (found.logp_share <= 0.95, f"behaviour_logp: {logp} have it; no importance weights"),
        (found.steps > 0 and found.rewarded_share == 0, "rewards: every one is 0; relabel, or imitate only"),
        (0 < found.rewarded_share < 0.001, f"rewards: {rewarded} have one; learning is slow"),
        (top[0] != "(none)" and top[1] > 0.5, f"more players: one of them made {top[1]:.0%} of the steps"),
    ]
    lacks = [text for failed, text in tests if failed]
    for drift in found.drift:
        limit = 0.2 if drift.what == "action" else 0.5
        if drift.shift > limit:
            lacks.append(f"one version: {drift.what} moved by {drift.shift:.2f} between {' and '.join(drift.versions)}")
    return lacks
