"""Reading: partitions as streams of rows, merged into the order in which episodes were opened; counts of each game and
sample tables of queries, brought up to date from what arrived since the last call.

The change feed gives every row once, however often it is asked. Rows by arrival carry their writer's clock: a partition
is read again until its last change is older than SETTLED_US, each time from that far back. So clocks that differ by
less, and slow writers, hide nothing.
"""

import heapq
import itertools
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from sparring.store.cassandra.schema import (
    DAY_MS,
    SELECT_CHUNKS,
    SELECT_ROWS,
    BucketLayout,
    Partition,
    Stored,
    in_part,
    stored,
)
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import EpisodeRecord, Query
from sparring.store.records import TABLES, GameCounts, SampleTable, episode_record, is_complete, matcher
from sparring.store.rows import Row, mark
from sparring.wire.ids import EpisodeId, GameId, opened_at_ms

WINDOW_MS = 600_000  # episodes opened within this are put in the order of their receipt
CHUNK_PAGES, ROW_PAGES = (4, 256), (64, 2_048)  # rows in the first page of a partition and in later ones
SLICES = 16  # episodes asked for at once, by name

FRESH_S = 1.0  # what others wrote is looked for this often; what this store wrote, at once

_KEY = struct.Struct("<16sii")  # of a chunk within its game: episode, seat, first step
Fresh = tuple[int, float]  # how much this store had written when it was brought up to date, and when that was
SETTLED_US = 120_000_000
PAGES = (128, 4_096)  # rows in the first page and in later ones

_REMOVED = "SELECT removed FROM removals WHERE game = ?"
_DAYS = "SELECT day, changed FROM days WHERE game = ?"
_BUCKETS = "SELECT bucket, changed FROM buckets WHERE game = ? AND day = ?"
_POINTERS = "SELECT episode FROM chunks_by_player WHERE game = ? AND mark = ?"


def days(session: CassandraSession, game: GameId) -> list[tuple[int, int]]:
    """The days that have rows, oldest first, and when each last changed."""
    return [(day, changed) for day, changed in session.one(session.scan(_DAYS, (game,)))]


def buckets(session: CassandraSession, game: GameId, day: int) -> list[tuple[Partition, int]]:
    """The partitions of a day, and when each last changed."""
    return [(Partition(game, day, at), changed) for at, changed in session.one(session.scan(_BUCKETS, (game, day)))]


def merged(
    session: CassandraSession, partitions: Iterable[Partition], *, bodies: bool = False, decides: bool = False
) -> Iterator[list[Stored]]:
    """The rows of each episode in some partitions of one day, in the order of opening, seat and step.

    `decides`: what is read decides about a write, so it has to see every write that was acknowledged.
    """
    statement = session.look if decides else session.scan

    def rows(partition: Partition) -> Iterator[Stored]:
        cql, sizes = (SELECT_CHUNKS, CHUNK_PAGES) if bodies else (SELECT_ROWS, ROW_PAGES)
        pages = session.pages(statement(cql, partition), *sizes)  # asked for now, while the others are on their way
        return (stored(partition, found) for found in pages)

    ordered = heapq.merge(*map(rows, partitions), key=lambda one: one.row[1:4])
    return (list(group) for _, group in itertools.groupby(ordered, key=lambda one: one.row.episode))


class Reader:
    """Finds the episodes of a query, each with all of its rows."""

    def __init__(self, session: CassandraSession, layout: Callable[[], BucketLayout]) -> None:
        self._session, self._layout = session, layout

    def chosen(self, query: Query, *, part: int = 0, of: int = 1) -> Iterator[Stored]:
        """The rows that the query wants with their bodies, in the order of opening, seat and step."""
        matches = matcher(query)
        if (query.players or query.episodes) and not query.complete:
            # A page at a time: one episode alone may have more chunks than memory holds.
            for at, episode in self._named_places(query, part, of):
                found = self._session.scan(f"{SELECT_CHUNKS} AND episode = ?", (*at, episode))
                rows = (stored(at, row) for row in self._session.pages(found, *CHUNK_PAGES))
                yield from (one for one in rows if matches(one.row))
            return
        for episode_rows in self._episodes(query, part, of, bodies=True):
            for group in _by_seat(episode_rows):
                if not query.complete or is_complete([one.row for one in group]):
                    yield from (one for one in group if matches(one.row))

    def records(self, query: Query) -> Iterator[EpisodeRecord]:
        """Episodes with the seats that have a chunk in `query`, each summed up whole."""
        matches, window, found = matcher(query), 0, list[tuple[int, EpisodeRecord]]()
        for rows in self._episodes(query, 0, 1, bodies=False):
            kept = []
            for group in ([one.row for one in group] for group in _by_seat(rows)):
                if any(map(matches, group)) and (not query.complete or is_complete(group)):
                    kept += group
            if (record := episode_record(kept)) is None:
                continue
            at = opened_at_ms(EpisodeId(kept[0].episode)) // WINDOW_MS
            if at != window:
                yield from _in_order(found)
                found, window = [], at
            found.append((max(one.arrived for one in rows), record))
        yield from _in_order(found)

    def slices(self, game: GameId, episodes: Iterable[EpisodeId], *, bodies: bool = False) -> Iterator[list[Stored]]:
        """The rows of the episodes named, in their order; nothing for one that is not there."""
        layout, cql = self._layout(), f"{SELECT_CHUNKS if bodies else SELECT_ROWS} AND episode = ?"
        listed, at_once = list(episodes), 2 if bodies else SLICES
        for start in range(0, len(listed), at_once):
            group = [(layout.partition(game, one), one) for one in listed[start : start + at_once]]
            answers = self._session.all(self._session.scan(cql, (*at, episode)) for at, episode in group)
            for (at, _), rows in zip(group, answers, strict=True):
                if rows:
                    yield [stored(at, found) for found in rows]

    def _episodes(self, query: Query, part: int, of: int, *, bodies: bool) -> Iterator[list[Stored]]:
        if query.players or query.episodes:
            named = [episode for _, episode in self._named_places(query, part, of)]
            yield from self.slices(query.game, named, bodies=bodies)
            return
        for day, _ in days(self._session, query.game):
            if day * DAY_MS >= query.until_ms + DAY_MS:  # an id may be a day ahead of its receipt, not more
                return
            found = [one for one, _ in buckets(self._session, query.game, day) if in_part(one, part, of)]
            yield from merged(self._session, found, bodies=bodies)

    def _named_places(self, query: Query, part: int, of: int) -> list[tuple[Partition, EpisodeId]]:
        """The episodes that the query names, or in which its players have a seat; in the order of opening."""
        named = set(query.episodes)
        if query.players:
            marks = [mark(query.game, player) for player in query.players]
            answers = self._session.all(self._session.scan(_POINTERS, (query.game, one)) for one in marks)
            theirs = {EpisodeId(episode) for rows in answers for (episode,) in rows}
            named = named & theirs if named else theirs
        layout = self._layout()
        places = [(layout.partition(query.game, one), one) for one in sorted(named)]
        return [(at, one) for at, one in places if in_part(at, part, of)]


def _by_seat(rows: list[Stored]) -> Iterator[list[Stored]]:
    return (list(group) for _, group in itertools.groupby(rows, key=lambda one: one.row.seat))


def _in_order(found: list[tuple[int, EpisodeRecord]]) -> list[EpisodeRecord]:
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


class Arrival(NamedTuple):
    """A row of `chunks_by_arrival`: what counts and samples need of a chunk."""

    arrived: int
    episode: str
    seat: int
    first_step: int
    steps: int
    version: str
    source: str
    actor: str
    mark: int | None
    ending: str
    received_at_ms: int
    size_bytes: int

    @classmethod
    def of(cls, row: Row, arrived: int) -> "Arrival":
        return cls(arrived, *(getattr(row, name) for name in cls._fields[1:]))

    @property
    def key(self) -> tuple[str, int, int]:
        return self.episode, self.seat, self.first_step


ARRIVAL_COLUMNS = ", ".join(Arrival._fields)
_SINCE = f"""SELECT {ARRIVAL_COLUMNS} FROM chunks_by_arrival
    WHERE game = ? AND day = ? AND bucket = ? AND arrived > ?"""


def removals(session: CassandraSession, game: GameId) -> int:
    """How often something was removed; what was read before that is to be read again."""
    found = session.one(session.look(_REMOVED, (game,)))
    return int(found[0][0]) if found else 0


@dataclass(slots=True)
class _Seen:
    """How far one partition was read."""

    changed: int = -1
    settled: bool = False
    newest: int = 0
    recent: dict[tuple[str, int, int], int] = field(default_factory=dict)  # rows that will be read again


class ChangeFeed:
    """How far a game was read."""

    def __init__(self) -> None:
        self._days: dict[int, tuple[int, bool]] = {}
        self._partitions: dict[Partition, _Seen] = {}

    def new(self, session: CassandraSession, game: GameId) -> Iterator[tuple[Partition, list[Arrival], bool]]:
        """For each partition with news: its new rows, and whether these are all that it has."""
        for day, changed in days(session, game):
            if self._days.get(day) == (changed, True):
                continue
            now_us = time.time_ns() // 1_000
            due = []
            for partition, at in buckets(session, game, day):
                seen = self._partitions.setdefault(partition, _Seen())
                if seen.changed != at or not seen.settled:
                    due.append((partition, seen))
                    seen.changed, seen.settled = at, now_us - at > SETTLED_US
            streams = [(partition, seen, _since(session, partition, seen)) for partition, seen in due]
            for partition, seen, rows in streams:
                first = seen.newest == 0
                if new := _fresh(seen, rows):
                    yield partition, new, first
            self._days[day] = changed, now_us - changed > SETTLED_US


def _since(session: CassandraSession, partition: Partition, seen: _Seen) -> Any:
    return session.pages(session.scan(_SINCE, (*partition, seen.newest - SETTLED_US)), *PAGES)


def _fresh(seen: _Seen, rows: Iterator[tuple[Any, ...]]) -> list[Arrival]:
    read = [Arrival(*row) for row in rows]
    # Two writers of the same chunk at once (a batch done again) leave two rows, moments apart: it counts once.
    first = {row.key: row for row in reversed(read)}
    new = [row for row in read if row.key not in seen.recent and first[row.key] is row]
    seen.newest = max([seen.newest, *(row.arrived for row in read)])
    horizon = seen.newest - SETTLED_US
    seen.recent = {row.key: row.arrived for row in read if row.arrived > horizon}
    return new


@dataclass(slots=True)
class FollowedCounts(GameCounts):
    """The counts of one game, and how far its changes were read."""

    feed: ChangeFeed = field(default_factory=ChangeFeed)
    fresh: Fresh = (-1, 0.0)
    episode_hashes: set[int] = field(default_factory=set)
    marks: set[int] = field(default_factory=set)
    by_partition: Counter[Partition] = field(default_factory=Counter)  # bytes

    def add_rows(self, partition: Partition, rows: list[Arrival]) -> None:
        """More rows of one partition."""
        for row in rows:
            self.add(row.source, row.version, 1, row.steps, row.size_bytes, row.received_at_ms, row.received_at_ms)
            self.by_partition[partition] += row.size_bytes
            self.episode_hashes.add(hash(row.episode))
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
