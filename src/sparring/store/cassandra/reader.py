"""Reading: partitions as streams of rows, merged into the order in which episodes were opened."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparring.store.cassandra.partitions import DAY_MS, BucketLayout, Partition, in_part
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import EpisodeRecord, Query
from sparring.store.rows import COLUMNS, Row, mark
from sparring.store.sqlite.episodes import record
from sparring.wire.ids import EpisodeId, GameId, opened_at_ms

WINDOW_MS = 600_000  # episodes opened within this are put in the order of their receipt
FIRST_PAGE, PAGE = 4, 256  # chunks asked for at once, with their bodies
FIRST_ROWS, ROWS = 64, 2_048  # without
SLICES = 16  # episodes asked for at once, by name

ARRIVED, HEADER, BODY = len(Row._fields), len(Row._fields) + 1, len(Row._fields) + 2
_EPISODE, _SEAT, _FIRST = (Row._fields.index(name) for name in ("episode", "seat", "first_step"))
_IN = "FROM chunks WHERE game = ? AND day = ? AND bucket = ?"
_ROWS, _WHOLE = f"SELECT {COLUMNS}, arrived {_IN}", f"SELECT {COLUMNS}, arrived, header, body {_IN}"
_DAYS = "SELECT day, changed FROM days WHERE game = ?"
_BUCKETS = "SELECT bucket, changed FROM buckets WHERE game = ? AND day = ?"
_POINTERS = "SELECT episode FROM chunks_by_player WHERE game = ? AND mark = ?"

Found = tuple[Any, ...]  # the columns of Row, arrived, and where asked for header and body


def days(session: CassandraSession, game: GameId) -> list[tuple[int, int]]:
    """The days that have rows, oldest first, and when one last changed."""
    return [(day, changed) for day, changed in session.one(session.scan(_DAYS, (game,)))]


def buckets(session: CassandraSession, game: GameId, day: int) -> list[tuple[Partition, int]]:
    """The partitions of a day, and when one last changed."""
    return [(Partition(game, day, at), changed) for at, changed in session.one(session.scan(_BUCKETS, (game, day)))]


class Reader:
    """Finds the episodes of a query, each with all of its rows."""

    def __init__(self, session: CassandraSession, layout: Callable[[], BucketLayout]) -> None:
        self._session, self._layout = session, layout

    def chosen(self, query: Query, *, part: int = 0, of: int = 1, bodies: bool = False) -> Iterator[list[Found]]:
        """For each episode its rows that the query wants, in the order of opening, seat and step."""
        wanted = _test(query)
        for rows in self._episodes(query, part, of, bodies=bodies):
            whole = {seat for seat, of_seat in _by_seat(rows) if not query.complete or is_whole(of_seat)}
            if kept := [row for row in rows if row[_SEAT] in whole and wanted(Row(*row[:ARRIVED]))]:
                yield kept

    def records(self, query: Query) -> Iterator[EpisodeRecord]:
        """Episodes with the seats that have a chunk in `query`, each summed up whole."""
        wanted, found = _test(query), list[tuple[int, EpisodeRecord]]()
        window = 0
        for rows in self._episodes(query, 0, 1, bodies=False):
            seats = {
                seat
                for seat, of_seat in _by_seat(rows)
                if any(wanted(Row(*row[:ARRIVED])) for row in of_seat) and (not query.complete or is_whole(of_seat))
            }
            if not seats:
                continue
            at = opened_at_ms(rows[0][_EPISODE]) // WINDOW_MS
            if at != window:
                yield from _in_order(found)
                found, window = [], at
            kept = [Row(*row[:ARRIVED]) for row in rows if row[_SEAT] in seats]
            found.append((max(row[ARRIVED] for row in rows), record(kept)))
        yield from _in_order(found)

    def slices(self, game: GameId, episodes: Iterable[EpisodeId], *, bodies: bool = False) -> Iterator[list[Found]]:
        """The rows of the episodes named, in their order; nothing for one that is not there."""
        layout, cql = self._layout(), f"{_WHOLE if bodies else _ROWS} AND episode = ?"
        listed, at_once = list(episodes), 2 if bodies else SLICES
        for start in range(0, len(listed), at_once):
            group = listed[start : start + at_once]
            jobs = [self._session.scan(cql, (*layout.partition(game, episode), episode)) for episode in group]
            yield from (rows for rows in self._session.all(jobs) if rows)

    def _episodes(self, query: Query, part: int, of: int, *, bodies: bool) -> Iterator[list[Found]]:
        if query.players or query.episodes:
            layout = self._layout()
            named = [one for one in self._named(query) if in_part(layout.partition(query.game, one), part, of)]
            yield from self.slices(query.game, named, bodies=bodies)
            return
        for day, _ in days(self._session, query.game):
            if day * DAY_MS >= query.until_ms + DAY_MS:  # an id may be a day ahead of its receipt, not more
                return
            partitions = [
                partition for partition, _ in buckets(self._session, query.game, day) if in_part(partition, part, of)
            ]
            merged = heapq.merge(*(self._stream(partition, bodies=bodies) for partition in partitions), key=_order)
            for _, rows in itertools.groupby(merged, key=lambda row: row[_EPISODE]):
                yield list(rows)

    def _named(self, query: Query) -> list[EpisodeId]:
        """The episodes that the query names, or in which its players have a seat; in the order of opening."""
        named = set(query.episodes)
        if query.players:
            jobs = [self._session.scan(_POINTERS, (query.game, mark(query.game, one))) for one in query.players]
            theirs = {EpisodeId(episode) for rows in self._session.all(jobs) for (episode,) in rows}
            named = named & theirs if named else theirs
        return sorted(named)

    def _stream(self, partition: Partition, *, bodies: bool) -> Iterator[Found]:
        first, most = (FIRST_PAGE, PAGE) if bodies else (FIRST_ROWS, ROWS)
        return self._session.pages(self._session.scan(_WHOLE if bodies else _ROWS, partition), first, most)


def is_whole(rows: list[Found]) -> bool:
    """Whether the rows of one seat reach from its first step to its end without a gap."""
    first, last = Row(*rows[0][:ARRIVED]), Row(*rows[-1][:ARRIVED])
    steps = sum(Row(*row[:ARRIVED]).steps for row in rows)
    return first.first_step == 0 and last.ending != "running" and last.first_step + last.steps == steps


def _order(row: Found) -> tuple[str, int, int]:
    return row[_EPISODE], row[_SEAT], row[_FIRST]


def _by_seat(rows: list[Found]) -> Iterator[tuple[int, list[Found]]]:
    return ((seat, list(group)) for seat, group in itertools.groupby(rows, key=lambda row: row[_SEAT]))


def _in_order(found: list[tuple[int, EpisodeRecord]]) -> list[EpisodeRecord]:
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _test(query: Query) -> Callable[[Row], bool]:
    """Whether a row is in the query, its game and completeness aside."""
    exact = {actor for actor in query.actors if not actor.endswith(":")}
    prefixes = tuple(actor for actor in query.actors if actor.endswith(":"))
    among = [
        (index, frozenset(values))
        for index, values in (
            (Row._fields.index("version"), query.versions),
            (Row._fields.index("source"), query.sources),
            (Row._fields.index("player"), query.players),
            (_SEAT, query.seats),
        )
        if values
    ]

    def wanted(row: Row) -> bool:
        return (
            all(row[index] in values for index, values in among)
            and (not query.actors or row.actor in exact or row.actor.startswith(prefixes))
            and query.since_ms <= row.received_at_ms < query.until_ms
        )

    return wanted
