"""Experience in place of weights, for nodes that one does not control: `[nodes] contribute = "experience"`.

A lease binds a seed, ε, the weights (by their hash) and a node. They determine what is played with it: fresh games, as
a rollout, or as a block of steps where the algorithm learns from replay. The parent plays a share of the leases again,
and each must match bit for bit. The share falls with a node's streak of valid results; which are played again a node
cannot know. It is 1 for a new node, and again after a result that did not match.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_changes

import msgspec
import numpy as np
import zstandard

from sparring.errors import WireError
from sparring.games.protocol import TRUNCATED
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.experience import (
    PlayedRollout,
    RolloutRing,
    StepBlock,
    StepBlockRing,
    joined,
    played,
    side_by_side,
)
from sparring.learn.plan import Plan
from sparring.nodes.codecs import MAX_WINDOW_BYTES, Layout
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec

LEAST_SHARE = 0.05  # of leases that are played again, of a node with a long streak
MISMATCHES = 3  # after which a node is banned
Columns = dict[str, Array]  # of one lease's result


def model_hash(weights: Array) -> str:
    """SHA-256 of weights as float32."""
    return hashlib.sha256(weights.astype("<f4").tobytes()).hexdigest()


def lease_games(envs: int, rollout_ticks: int, lease_ticks: int) -> int:
    """Of one lease, which is about as large as a rollout of one actor: an update learns from one of each node."""
    return max(1, envs * rollout_ticks // lease_ticks)


class LeasePlayer:
    """Plays leases, on the node and again on the parent, and reads what was played."""

    def __init__(self, plan: Plan, network: NetworkSpec, ticks: int) -> None:
        alone = with_changes(plan, opponents=0, opponent_share=0.0, script_share=0.0, league="")
        feeds = "steps"
        if plan.algorithm.feeds == "trajectories":
            feeds, games = "rollouts", lease_games(plan.envs, plan.settings.rollout_ticks, ticks)
            alone = with_changes(alone, envs=games)
        self._spec = actor_spec(alone, network, feeds=feeds, ticks=ticks, slots=1)
        self._ring = self._spec.open_ring()
        self._columns = {name: (column.dtype, column.shape) for name, column in self._ring.to_write().items()}
        self.raw_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._columns.values())
        self._optional: tuple[int, ...] | None = None  # which columns blocks of this game have

    @property
    def games(self) -> int:
        """At once, in one lease."""
        return self._spec.envs

    @property
    def most_steps(self) -> int:
        """Of one lease."""
        return self._spec.ticks * self._spec.streams

    @property
    def streams(self) -> int:
        return self._spec.streams

    def play(self, layout: Layout, weights: Array, seed: int, version: int, epsilon: float = 0.0) -> bytes:
        """What is played with that lease; equal arguments give equal bytes."""
        for column in self._ring.to_write().values():
            column.fill(0)
        actor, opponents = msgspec.structs.replace(self._spec, seed=seed).open_actor(layout.by_name(weights))
        try:
            if isinstance(self._ring, RolloutRing):
                self._ring.play(actor, version, epsilon)
            else:
                ticks = [actor.step(epsilon) for _ in range(self._spec.ticks)]
                counted = {"env_steps": actor.env_steps, "games": actor.episodes}
                self._ring.write(ticks, actor.ended(), version=version, **counted)
        finally:
            opponents.close()
        columns = self._ring.to_read()
        if isinstance(self._ring, StepBlockRing):
            self._optional = _optional(columns)
        raw = b"".join(np.ascontiguousarray(columns[name]).tobytes() for name in self._columns)
        self._ring.release()
        return raw

    def read(self, raw: bytes) -> Columns:
        """What was played, or a WireError where it cannot have been."""
        columns: Columns = {}
        offset = 0
        for name, (dtype, shape) in self._columns.items():
            count = math.prod(shape)
            kind = np.dtype(np.uint8) if dtype == np.bool_ else dtype  # a byte of a bool may be any number
            column = np.frombuffer(raw, kind, count, offset).reshape(shape)
            columns[name] = column != 0 if dtype == np.bool_ else column.copy()
            offset += column.nbytes
        if isinstance(self._ring, RolloutRing):
            self._check(columns)
        else:
            self._check_block(columns)
        return columns

    def rollout(self, parts: Sequence[Columns]) -> PlayedRollout:
        """Several leases as one rollout."""
        return played(side_by_side(parts))

    def block(self, columns: Columns) -> StepBlock:
        return joined(columns, self._spec.played.seats[0])

    def close(self) -> None:
        self._ring.close()

    def _check(self, columns: dict[str, Array]) -> None:
        """No number that would break a learner; whether the game could give it a re-run shows."""
        head, length, action = columns["head"][0], columns["length"], self._spec.spec.seats[0].action
        wrong = ""
        if not all(np.isfinite(column).all() for column in columns.values() if column.dtype.kind == "f"):
            wrong = "a number that is not finite"
        elif length.min() < 1 or length.max() > self._spec.ticks or columns["ending"].max() > TRUNCATED:
            wrong = "a length or an ending that cannot be"
        elif action.choices and not ((columns["action"] >= 0) & (columns["action"] < action.choices)).all():
            wrong = f"an action that is not one of {action.choices}"
        elif (head < 0).any() or head[1] > self._spec.ticks * self._spec.envs or head[3] > columns["returns"].size:
            wrong = "counts that cannot be"
        _refuse(wrong)

    def _check_block(self, columns: dict[str, Array]) -> None:
        """As `_check`, of a block of steps: no number that would break a table."""
        head, (counts, finals) = columns["head"], columns["counts"]
        ticks, streams, action = self._spec.ticks, self._spec.streams, self._spec.spec.seats[0].action
        wrong, first = "", np.cumsum(counts) - counts
        if (head < 0).any() or max(head[1:4]) > ticks * streams or head[4] != ticks:
            _refuse("counts that cannot be")
        if _optional(columns) != (self._optional or _optional(columns)):
            _refuse("columns that this game does not give")
        if (counts < 0).any() or (counts > streams).any() or (finals < 0).any() or (finals > counts).any():
            _refuse("counts of a tick that cannot be")
        rows, ended = int(counts.sum()), int(finals.sum())
        stream, final = columns["stream"][:rows], columns["final"][:ended] + np.repeat(first, finals)
        inside = columns["final"][:ended] < np.repeat(counts, finals)
        if not all(np.isfinite(column).all() for column in columns.values() if column.dtype.kind == "f"):
            wrong = "a number that is not finite"
        elif (stream < 0).any() or (stream >= streams).any() or columns["ending"].max() > TRUNCATED:
            wrong = "a stream or an ending that cannot be"
        elif (columns["final"][:ended] < 0).any() or not inside.all() or (np.diff(final) <= 0).any():
            wrong = "final steps that cannot be"
        elif not np.isin(np.flatnonzero(columns["ending"][:rows]), final).all():
            wrong = "an ended step without what was seen then"
        elif action.choices and not ((columns["action"] >= 0) & (columns["action"] < action.choices)).all():
            wrong = f"an action that is not one of {action.choices}"
        _refuse(wrong)


def _optional(columns: Mapping[str, Array]) -> tuple[int, ...]:
    """Which of a block's columns are there."""
    return tuple(columns["head"][5:].tolist())


def _refuse(wrong: str) -> None:
    if wrong:
        raise WireError(wrong, where="experience of a node", do="Play the lease")


def packed(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(raw)


def unpacked(payload: bytes, expected_bytes: int) -> bytes:
    """Bytes of exactly that length; a frame that declares another is not inflated."""
    try:
        if (declared := zstandard.get_frame_parameters(payload).content_size) != expected_bytes:
            wrong = f"it declares {declared} bytes, a lease has {expected_bytes}"
            raise WireError(wrong, where="experience of a node", do="Play the lease")
        return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompress(payload, expected_bytes)
    except zstandard.ZstdError as error:
        raise WireError(f"it does not inflate: {error}", where="experience of a node", do="Play the lease") from None


@dataclass(frozen=True, slots=True)
class IssuedLease:
    """What one node may play, once."""

    number: int
    node: str
    seed: int
    version: int  # of the weights
    model: str  # their hash
    weights: Array
    epsilon: float = 0.0


@dataclass(slots=True)
class LeaseBook:
    """Leases that were given out, and how far each node is trusted. It knows no clock, no thread and no socket."""

    rng: random.Random = field(default_factory=random.SystemRandom)
    refused: Counter[str] = field(default_factory=Counter)
    reruns: int = 0
    _open: dict[int, IssuedLease] = field(default_factory=dict)
    _streaks: Counter[str] = field(default_factory=Counter)
    _mismatches: Counter[str] = field(default_factory=Counter)
    _issued: int = 0

    def issue(self, node: str, version: int, weights: Array, epsilon: float = 0.0) -> IssuedLease:
        """A new lease for a node, which gives up the one that it had."""
        self._open = {number: one for number, one in self._open.items() if one.node != node}
        self._issued += 1
        seed, model = self.rng.getrandbits(40), model_hash(weights)
        lease = IssuedLease(self._issued, node, seed, version, model, weights, epsilon)
        self._open[lease.number] = lease
        return lease

    def redeem(self, node: str, number: int, model: str) -> IssuedLease | None:
        """The lease that a result is of; None, and counted, where the node has no such lease with such weights."""
        lease = self._open.get(number)
        if lease is None or (lease.node, lease.model) != (node, model):
            self.refused["lease"] += 1
            return None
        return self._open.pop(number)

    def share(self, node: str) -> float:
        """Of a node's results that are played again."""
        return max(LEAST_SHARE, 1.0 / (1 + self._streaks[node]))

    def is_chosen(self, node: str) -> bool:
        """Whether the result that has come is played again."""
        chosen = self.rng.random() < self.share(node)
        self.reruns += chosen
        return chosen

    def judged(self, node: str, *, valid: bool) -> bool:
        """Count a result; whether the node has now failed so often that it is to be banned."""
        if valid:
            self._streaks[node] += 1
            return False
        self.refused["rerun"] += 1
        self._streaks[node] = 0
        self._mismatches[node] += 1
        return self._mismatches[node] >= MISMATCHES
