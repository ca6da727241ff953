"""Batches from several shards, requested a few at a time before they are needed, and their new priorities.

    counts of TOGETHER batches ─► every shard ─► batches that wait to be learned
    priorities of as many      ◄── in one call

A call costs as much as an update where networks are small, so that one call is for several batches, unless they are
large. What is ahead is no more than the sixteen batches of the paper (Horgan 2018).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.hosts.protocol import Handle, Pending
from sparring.replay.steps import Batch
from sparring.wire.chunk import Array

AHEAD = 2  # calls that are pending, or whose batches are being learned from
TOGETHER = 8  # batches of one call, at most
TOGETHER_BYTES = 1 << 20  # of those; of larger ones there is one a call
_BY_TIME = ("observation", "action", "reward", "ending", "legal", "behaviour_logp", "mask")  # of windows: [time, n]


@dataclass(frozen=True, slots=True)
class ShardRows:
    """Where the rows of a batch are."""

    shards: tuple[int, ...]
    rows: tuple[Array, ...]
    counts: tuple[int, ...]
    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """Several pending batches: what each shard was asked."""

    shares: Array  # of the draws that go to each shard
    asked: dict[int, Pending]  # by shard

    def done(self) -> bool:
        return all(one.done() for one in self.asked.values())


@dataclass(slots=True)
class _Said:
    """The learner's priorities of rows of one shard, not sent yet."""

    generation: int
    rows: list[Array] = field(default_factory=list)
    priorities: list[Array] = field(default_factory=list)


class ShardSampler:
    """The batches ahead. `count` is of the draws of one, `windows` says that a draw is of several steps."""

    def __init__(self, count: int, *, windows: bool) -> None:
        self._count, self._windows = count, windows
        self._together = 1  # until it is known how large they are
        self._calls: deque[_Call] = deque()
        self._here: deque[tuple[Batch, ShardRows]] = deque()
        self._said: dict[int, _Said] = {}  # by shard

    def ask_ahead(self, handles: Sequence[Handle], mass: Array, rng: Generator) -> None:
        """As many as may be under way, from each shard by its share of the mass."""
        if not mass.sum() > 0:
            return
        shares = mass / mass.sum()
        while len(self._calls) + bool(self._here) < AHEAD:
            counts = rng.multinomial(self._count, shares, size=self._together)
            drawn = np.flatnonzero(counts.any(axis=0)).tolist()
            asked = {shard: handles[shard].ask("sample", counts[:, shard].tolist()) for shard in drawn}
            self._calls.append(_Call(shares, asked))

    def take(self) -> tuple[Batch, ShardRows] | None:
        """The oldest batch that is here."""
        return self._here.popleft() if self._here else None

    def answered(self, answer: Callable[[Pending], Any]) -> dict[int, Any]:
        """What the shards said to the oldest call; its batches are here where all of them said something. Empty: it is
        not there yet."""
        if not self._calls or not self._calls[0].done():
            return {}
        call = self._calls.popleft()
        said = {shard: answer(asked) for shard, asked in call.asked.items()}
        if all(said.values()):
            self._here.extend(self._joined(call.shares, said))
        return said

    def waits_for(self) -> list[Pending]:
        """Those that the next batch is waited for of."""
        return list(self._calls[0].asked.values()) if self._calls and not self._here else []

    def learned(self, which: ShardRows, priorities: Array) -> None:
        """Keep what the learner said of a batch."""
        ends = np.cumsum(which.counts)[:-1]
        for shard, rows, said, generation in zip(
            which.shards, which.rows, np.split(priorities, ends), which.generations, strict=True
        ):
            kept = self._said.get(shard)
            if kept is None or kept.generation != generation:
                kept = self._said[shard] = _Said(generation)
            kept.rows.append(rows)
            kept.priorities.append(said)

    def tell(self, handles: Sequence[Handle], *, now: bool = False) -> None:
        """Tell the shards what was kept, once that is of as many batches as a call is for."""
        for shard, kept in list(self._said.items()):
            if now or len(kept.rows) >= self._together:
                rows, priorities = np.concatenate(kept.rows, axis=-1), np.concatenate(kept.priorities)
                handles[shard].ask("learned", rows, priorities, kept.generation)
                del self._said[shard]

    def forget(self) -> None:
        """Everything that is under way."""
        self._calls.clear()
        self._here.clear()

    def _joined(self, shares: Array, said: dict[int, Any]) -> list[tuple[Batch, ShardRows]]:
        found = []
        for place in range(len(next(iter(said.values()))["draws"])):
            there = {shard: answer["draws"][place] for shard, answer in said.items() if answer["draws"][place]}
            batch = self._batch({shard: (float(shares[shard]), draw) for shard, draw in there.items()}, said)
            which = ShardRows(
                tuple(there),
                tuple(np.asarray(draw["rows"]) for draw in there.values()),
                tuple(len(draw["chance"]) for draw in there.values()),
                tuple(said[shard]["generation"] for shard in there),
            )
            found.append((batch, which))
        self._together = max(1, min(TOGETHER, TOGETHER_BYTES // _bytes_of(found[0][0])))
        return found

    def _batch(self, draws: dict[int, tuple[float, dict[str, Any]]], said: dict[int, Any]) -> Batch:
        columns: dict[str, Any] = {}
        each = [draw["batch"] for _, draw in draws.values()]
        for name, first in each[0].items():
            axis = 1 if self._windows and name in _BY_TIME else 0
            if isinstance(first, dict):
                columns[name] = {leaf: np.concatenate([one[name][leaf] for one in each], axis) for leaf in first}
            else:
                columns[name] = np.concatenate([one[name] for one in each], axis)
        first = said[next(iter(draws))]
        if first["prioritised"]:
            chance = np.concatenate([share * np.asarray(draw["chance"]) for share, draw in draws.values()])
            columns["weight"] = weights_of(chance, first["exponent"])
        return Batch(**columns)


def weights_of(chance: Array, exponent: float) -> Array:
    """(n P(i))^-β over the largest of the batch: n is the same for all, so only the chances count."""
    return np.asarray((chance / chance.min()) ** -exponent, np.float32)


def _bytes_of(batch: Batch) -> int:
    columns = [getattr(batch, name) for name in Batch.__slots__]
    leaves = [leaf for one in columns for leaf in (one.values() if isinstance(one, dict) else [one])]
    return max(1, sum(int(leaf.nbytes) for leaf in leaves if leaf is not None))
