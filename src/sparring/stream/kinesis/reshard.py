"""How many shards become how many others: what to split and what to merge, one move after the other. No I/O.

The aim is ranges of equal size. Ranges that lie within one of those are merged, and a range that reaches over the end
of one is split there: so between two moves there are never fewer shards than the lesser of both numbers.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SPACE = 1 << 128  # of partition keys' hashes
NEAR = SPACE >> 64  # ranges that differ by less are the same: servers round differently


@dataclass(frozen=True, slots=True)
class HashRange:
    """An open shard and the hashes that go to it, both ends included."""

    shard: str
    first: int
    last: int

    @property
    def share(self) -> float:
        return (self.last - self.first + 1) / SPACE


@dataclass(frozen=True, slots=True)
class Split:
    """Of one shard in two; the second begins with `at`."""

    shard: str
    at: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Of two neighbours."""

    shard: str
    neighbour: str


def next_move(ranges: Sequence[HashRange], shards: int) -> Split | Merge | None:
    """The next step from these open shards to `shards` of equal size; None when they are there."""
    ordered = sorted(ranges, key=lambda one: one.first)
    ends = [SPACE * at // shards for at in range(1, shards + 1)]
    for one, following in pairwise(ordered):
        if following.last < _end_after(ends, one.first) + NEAR:
            return Merge(one.shard, following.shard)
    for one in ordered:
        end = _end_after(ends, one.first)
        if one.last >= end + NEAR:
            return Split(one.shard, end)
    return None


def _end_after(ends: Sequence[int], first: int) -> int:
    """Where the wanted range that holds `first` ends; the end itself is the next one's."""
    return ends[min(bisect_right(ends, first + NEAR), len(ends) - 1)]


def next_count(now: int, wanted: int) -> int:
    """How far one UpdateShardCount goes: at most to twice as many, and to half."""
    return min(wanted, 2 * now) if wanted > now else max(wanted, -(-now // 2))
