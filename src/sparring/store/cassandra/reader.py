"""Reading: partitions as streams of rows, merged into the order in which episodes were opened."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator

from sparring.store.cassandra.partitions import (
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
from sparring.store.records import episode_record, is_complete, matcher
from sparring.store.rows import mark
from sparring.wire.ids import EpisodeId, GameId, opened_at_ms

WINDOW_MS = 600_000  # episodes opened within this are put in the order of their receipt
CHUNK_PAGES, ROW_PAGES = (4, 256), (64, 2_048)  # rows in the first page of a partition and in later ones
SLICES = 16  # episodes asked for at once, by name

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
        for rows in self._episodes(query, part, of, bodies=True):
            for group in _by_seat(rows):
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
            if not kept:
                continue
            at = opened_at_ms(EpisodeId(kept[0].episode)) // WINDOW_MS
            if at != window:
                yield from _in_order(found)
                found, window = [], at
            found.append((max(one.arrived for one in rows), episode_record(kept)))
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
            layout = self._layout()
            named = [one for one in self._named(query) if in_part(layout.partition(query.game, one), part, of)]
            yield from self.slices(query.game, named, bodies=bodies)
            return
        for day, _ in days(self._session, query.game):
            if day * DAY_MS >= query.until_ms + DAY_MS:  # an id may be a day ahead of its receipt, not more
                return
            found = [one for one, _ in buckets(self._session, query.game, day) if in_part(one, part, of)]
            yield from merged(self._session, found, bodies=bodies)

    def _named(self, query: Query) -> list[EpisodeId]:
        """The episodes that the query names, or in which its players have a seat; in the order of opening."""
        named = set(query.episodes)
        if query.players:
            marks = [mark(query.game, player) for player in query.players]
            answers = self._session.all(self._session.scan(_POINTERS, (query.game, one)) for one in marks)
            theirs = {EpisodeId(episode) for rows in answers for (episode,) in rows}
            named = named & theirs if named else theirs
        return sorted(named)


def _by_seat(rows: list[Stored]) -> Iterator[list[Stored]]:
    return (list(group) for _, group in itertools.groupby(rows, key=lambda one: one.row.seat))


def _in_order(found: list[tuple[int, EpisodeRecord]]) -> list[EpisodeRecord]:
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]
