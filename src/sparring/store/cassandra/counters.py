"""Counts of each game and tables to draw from, kept up to date by following what arrives."""

import hashlib
import itertools
import struct
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from numpy.random import Generator

from sparring.store.cassandra.change_feed import Arrival, ChangeFeed, removals
from sparring.store.cassandra.partitions import Partition
from sparring.store.cassandra.reader import Reader
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import GameStats, Query
from sparring.store.rows import Row, mark
from sparring.wire.chunk import Array
from sparring.wire.ids import EpisodeId, GameId

TABLES = 4  # queries remembered; a trainer has one or two
FRESH_S = 1.0  # what others wrote is looked for this often; what this store wrote, at once

_KEY = struct.Struct("<16sii")
Fresh = tuple[int, float]  # how much this store had written when it was brought up to date, and when that was
Seats = dict[tuple[str, int], bool]  # (episode, seat) → whether it is whole


@dataclass(slots=True)
class GameCounts:
    """What is counted of one game."""

    removals: int
    feed: ChangeFeed = field(default_factory=ChangeFeed)
    fresh: Fresh = (-1, 0.0)
    chunks: int = 0
    size_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    episodes: set[int] = field(default_factory=set)  # hashes: 8 bytes of each name
    incomplete: set[str] = field(default_factory=set)
    players: set[int] = field(default_factory=set)
    by_source: Counter[str] = field(default_factory=Counter)
    by_version: Counter[str] = field(default_factory=Counter)
    by_partition: Counter[Partition] = field(default_factory=Counter)  # bytes

    def add(self, partition: Partition, rows: list[Arrival], seats: Seats) -> None:
        """More rows of one partition."""
        self.chunks += len(rows)
        for row in rows:
            self.by_source[row.source] += row.steps
            self.by_version[row.version] += row.steps
            self.by_partition[partition] += row.size_bytes
            self.episodes.add(_hash(row.episode))
            if row.mark is not None:
                self.players.add(row.mark)
        received = [row.received_at_ms for row in rows]
        self.first_ms = min(received) if self.first_ms is None else min(self.first_ms, *received)
        self.last_ms = max(received) if self.last_ms is None else max(self.last_ms, *received)
        for episode, found in itertools.groupby(sorted(seats.items()), key=lambda one: one[0][0]):
            (self.incomplete.discard if all(whole for _, whole in found) else self.incomplete.add)(episode)

    def stats(self, game: GameId) -> GameStats:
        return GameStats(
            game=game,
            chunks=self.chunks,
            steps=self.by_source.total(),
            episodes=len(self.episodes),
            incomplete_episodes=len(self.incomplete),
            players=len(self.players),
            encoded_bytes=self.by_partition.total(),
            first_received_ms=self.first_ms,
            last_received_ms=self.last_ms,
            steps_by_source=dict(self.by_source),
            steps_by_version=dict(self.by_version),
        )


@dataclass(slots=True)
class SampleTable:
    """The chunks of one query: their keys in 24 bytes each, and the running sum of their steps."""

    removals: int
    feed: ChangeFeed = field(default_factory=ChangeFeed)
    fresh: Fresh = (-1, 0.0)
    keys: list[bytes] = field(default_factory=list)
    ends: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    whole: set[tuple[str, int]] = field(default_factory=set)

    def add(self, rows: Iterable[tuple[str, int, int, int]]) -> None:
        """More chunks, as (episode, seat, first_step, steps)."""
        listed = list(rows)
        start = int(self.ends[-1]) if len(self.ends) else 0
        self.keys += [_KEY.pack(UUID(episode).bytes, seat, first) for episode, seat, first, _ in listed]
        self.ends = np.concatenate((self.ends, start + np.cumsum(np.array([n for *_, n in listed], np.int64))))

    def draw(self, steps: int, rng: Generator) -> list[tuple[EpisodeId, int, int]]:
        """Keys of chunks that hold `steps` on average, each drawn as often as it has steps."""
        total = int(self.ends[-1])
        count = max(1, round(steps * len(self.keys) / total))
        picks = np.searchsorted(self.ends, rng.integers(0, total, count), side="right")
        found = (_KEY.unpack(self.keys[at]) for at in picks.tolist())
        return [(EpisodeId(str(UUID(bytes=name))), seat, first) for name, seat, first in found]


class Counters:
    """The tallies of all games asked for, and the tables of the last few queries."""

    def __init__(self, session: CassandraSession, reader: Reader) -> None:
        self._session, self._reader = session, reader
        self._lock = threading.Lock()
        self._tallies: dict[GameId, GameCounts] = {}
        self._tables: OrderedDict[Query, SampleTable] = OrderedDict()
        self._written = 0

    def wrote(self) -> None:
        """This store changed something: what is asked next shall know."""
        with self._lock:
            self._written += 1

    def tally(self, game: GameId) -> GameCounts:
        """What is kept of one game now."""
        with self._lock:
            tally = self._tallies.get(game)
            if tally is not None and self._is_fresh(tally.fresh):
                return tally
            now = (self._written, time.monotonic())
            at = removals(self._session, game)
            if tally is None or tally.removals != at:
                tally = GameCounts(at)
            self._tallies.pop(game, None)  # one that fails half way is not gone on with
            for partition, rows, first in tally.feed.new(self._session, game):
                tally.add(partition, rows, self._seats(partition, rows, all_there=first))
            tally.fresh = now
            if tally.chunks:  # a name that nobody plays is not remembered
                self._tallies[game] = tally
            return tally

    def table(self, query: Query) -> SampleTable:
        """The table of a query, with whatever was stored since."""
        with self._lock:
            table = self._tables.get(query)
            if table is not None and self._is_fresh(table.fresh):
                return table
            now = (self._written, time.monotonic())
            at = removals(self._session, query.game)
            table = self._tables.pop(query, None)  # one that fails half way is not gone on with
            if table is None or table.removals != at:
                table = SampleTable(at)
            wanted = _test(query)
            for partition, rows, first in table.feed.new(self._session, query.game):
                if query.complete:
                    table.add(self._completed(table, partition, rows, wanted, all_there=first))
                else:
                    table.add((row.episode, row.seat, row.first_step, row.steps) for row in rows if wanted(row))
            table.fresh = now
            self._tables[query] = table
            while len(self._tables) > TABLES:
                self._tables.popitem(last=False)
            return table

    def _is_fresh(self, fresh: Fresh) -> bool:
        return fresh[0] == self._written and time.monotonic() - fresh[1] < FRESH_S

    def _completed(
        self,
        table: SampleTable,
        partition: Partition,
        rows: list[Arrival],
        wanted: Callable[[Arrival], bool],
        *,
        all_there: bool,
    ) -> Iterator[tuple[str, int, int, int]]:
        """The rows of seats that these rows complete; a complete seat takes no more, so none is twice."""
        for row in self._all_rows(partition, rows, all_there=all_there, whole=table.whole):
            if wanted(row):
                yield row.episode, row.seat, row.first_step, row.steps

    def _all_rows(
        self, partition: Partition, rows: list[Arrival], *, all_there: bool, whole: set[tuple[str, int]]
    ) -> list[Arrival]:
        found: list[Arrival] = []
        for (episode, seat), group in self._groups(partition, rows, all_there=all_there).items():
            if (episode, seat) not in whole and _is_whole(group):
                whole.add((episode, seat))
                found += group
        return found

    def _seats(self, partition: Partition, rows: list[Arrival], *, all_there: bool) -> Seats:
        return {key: _is_whole(group) for key, group in self._groups(partition, rows, all_there=all_there).items()}

    def _groups(
        self, partition: Partition, rows: list[Arrival], *, all_there: bool
    ) -> dict[tuple[str, int], list[Arrival]]:
        """All rows of the episodes that `rows` touch, by seat and in the order of steps."""
        if not all_there:
            touched = sorted({EpisodeId(row.episode) for row in rows})
            rows = [_arrival(found) for slices in self._reader.slices(partition.game, touched) for found in slices]
        groups: dict[tuple[str, int], list[Arrival]] = {}
        for row in sorted(rows, key=lambda row: row.key):
            groups.setdefault((row.episode, row.seat), []).append(row)
        return groups


def _arrival(found: tuple[object, ...]) -> Arrival:
    row = Row(*found[: len(Row._fields)])  # type: ignore[arg-type]
    return Arrival(0, row.episode, row.seat, row.first_step, row.steps, row.version, row.source, row.actor, row.mark,
                   row.ending, row.received_at_ms, row.size_bytes)  # fmt: skip


def _is_whole(rows: list[Arrival]) -> bool:
    last = rows[-1]
    return (
        rows[0].first_step == 0
        and last.ending != "running"
        and last.first_step + last.steps == sum(row.steps for row in rows)
    )


def _hash(episode: str) -> int:
    return int.from_bytes(hashlib.blake2b(episode.encode(), digest_size=8).digest(), "little")


def _test(query: Query) -> Callable[[Arrival], bool]:
    """Whether a row is in the query, its game and completeness aside."""
    exact = {actor for actor in query.actors if not actor.endswith(":")}
    prefixes = tuple(actor for actor in query.actors if actor.endswith(":"))
    marks = {mark(query.game, player) for player in query.players}

    def wanted(row: Arrival) -> bool:
        return (
            (not query.versions or row.version in query.versions)
            and (not query.sources or row.source in query.sources)
            and (not query.seats or row.seat in query.seats)
            and (not query.players or row.mark in marks)
            and (not query.episodes or row.episode in query.episodes)
            and (not query.actors or row.actor in exact or row.actor.startswith(prefixes))
            and query.since_ms <= row.received_at_ms < query.until_ms
        )

    return wanted
