"""Counts of each game and sample tables of queries, brought up to date from what arrived since the last call."""

import hashlib
import itertools
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sparring.store.cassandra.change_feed import Arrival, ChangeFeed, removals
from sparring.store.cassandra.partitions import Partition
from sparring.store.cassandra.reader import Reader
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import Query
from sparring.store.records import is_complete, matcher
from sparring.store.summaries import TABLES, GameCounts, SampleTable
from sparring.wire.ids import EpisodeId, GameId

FRESH_S = 1.0  # what others wrote is looked for this often; what this store wrote, at once

_KEY = struct.Struct("<16sii")  # of a chunk within its game: episode, seat, first step
Fresh = tuple[int, float]  # how much this store had written when it was brought up to date, and when that was


@dataclass(slots=True)
class FollowedCounts(GameCounts):
    """The counts of one game, and how far its changes were read."""

    feed: ChangeFeed = field(default_factory=ChangeFeed)
    fresh: Fresh = (-1, 0.0)
    episode_hashes: set[int] = field(default_factory=set)  # 8 bytes of each name
    marks: set[int] = field(default_factory=set)
    by_partition: Counter[Partition] = field(default_factory=Counter)  # bytes

    def add_rows(self, partition: Partition, rows: list[Arrival]) -> None:
        """More rows of one partition."""
        for row in rows:
            self.add(row.source, row.version, 1, row.steps, row.size_bytes, row.received_at_ms, row.received_at_ms)
            self.by_partition[partition] += row.size_bytes
            name = hashlib.blake2b(row.episode.encode(), digest_size=8).digest()
            self.episode_hashes.add(int.from_bytes(name, "little"))
            if row.mark is not None:
                self.marks.add(row.mark)
        self.episodes, self.players = len(self.episode_hashes), len(self.marks)


class FollowedTable(SampleTable):
    """The sample table of one query, and how far its game's changes were read."""

    def __init__(self, removals: int) -> None:
        super().__init__(removals, f"V{_KEY.size}")
        self.feed, self.complete = ChangeFeed(), set[tuple[str, int]]()
        self.fresh: Fresh = (-1, 0.0)


def unpack_key(key: bytes) -> tuple[EpisodeId, int, int]:
    """Episode, seat and first step of a key that a table has drawn."""
    name, seat, first_step = _KEY.unpack(key)
    return EpisodeId(str(UUID(bytes=name))), seat, first_step


class Summaries:
    """The counts of all games asked for, and the tables of the last few queries."""

    def __init__(self, session: CassandraSession, reader: Reader) -> None:
        self._session, self._reader = session, reader
        self._lock = threading.Lock()
        self._counts: dict[GameId, FollowedCounts] = {}
        self._tables: dict[Query, FollowedTable] = {}
        self._written = 0

    def wrote(self) -> None:
        """This store changed something: the next call has to see it."""
        with self._lock:
            self._written += 1

    def counts(self, game: GameId) -> FollowedCounts:
        """What is kept of one game now."""
        with self._lock:
            counts = self._counts.get(game)
            if counts is not None and self._is_fresh(counts.fresh):
                return counts
            fresh, at = (self._written, time.monotonic()), removals(self._session, game)
            self._counts.pop(game, None)  # one that fails half way is not continued
            if counts is None or counts.removals != at:
                counts = FollowedCounts(at)
            for partition, rows, first in counts.feed.new(self._session, game):
                counts.add_rows(partition, rows)
                seats = self._seats(partition, rows, all_there=first)
                for episode, found in itertools.groupby(seats.items(), key=lambda one: one[0][0]):
                    counts.note(episode, all(is_complete(group) for _, group in found))
            counts.fresh = fresh
            if counts.chunks:  # a name that has no chunks is not remembered
                self._counts[game] = counts
            return counts

    def table(self, query: Query) -> FollowedTable:
        """The table of a query, with everything stored since the last call."""
        with self._lock:
            table = self._tables.get(query)
            if table is not None and self._is_fresh(table.fresh):
                return table
            fresh, at = (self._written, time.monotonic()), removals(self._session, query.game)
            self._tables.pop(query, None)  # one that fails half way is not continued
            if table is None or table.removals != at:
                table = FollowedTable(at)
            matches, keys, steps = matcher(query), list[bytes](), list[int]()
            for partition, rows, first in table.feed.new(self._session, query.game):
                found = self._completed(table, partition, rows, all_there=first) if query.complete else rows
                for row in filter(matches, found):
                    keys.append(_KEY.pack(UUID(row.episode).bytes, row.seat, row.first_step))
                    steps.append(row.steps)
            table.add(keys, steps)
            table.fresh = fresh
            self._tables[query] = table
            while len(self._tables) > TABLES:
                del self._tables[next(iter(self._tables))]
            return table

    def _is_fresh(self, fresh: Fresh) -> bool:
        return fresh[0] == self._written and time.monotonic() - fresh[1] < FRESH_S

    def _completed(
        self, table: FollowedTable, partition: Partition, rows: list[Arrival], *, all_there: bool
    ) -> list[Any]:
        """All rows of the seats that `rows` complete; a complete seat takes no more, so none is twice."""
        seats = self._seats(partition, rows, all_there=all_there)
        done = {key: group for key, group in seats.items() if key not in table.complete and is_complete(group)}
        table.complete |= done.keys()
        return [row for group in done.values() for row in group]

    def _seats(self, partition: Partition, rows: list[Arrival], *, all_there: bool) -> dict[tuple[str, int], list[Any]]:
        """All rows of the episodes that `rows` touch, by seat and in the order of steps."""
        found: list[Any] = list(rows)
        if not all_there:
            touched = sorted({EpisodeId(row.episode) for row in rows})
            found = [one.row for episode in self._reader.slices(partition.game, touched) for one in episode]
        seats: dict[tuple[str, int], list[Any]] = {}
        for row in sorted(found, key=lambda row: (row.episode, row.seat, row.first_step)):
            seats.setdefault((row.episode, row.seat), []).append(row)
        return seats
