"""Keeping no more than was asked for: whole episodes go, the oldest first."""

import heapq
import itertools
import time
from collections.abc import Iterator

from sparring.store.cassandra import erasure
from sparring.store.cassandra import reader as reading
from sparring.store.cassandra.erasure import StoredRow
from sparring.store.cassandra.partitions import DAY_MS, Partition
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import Trimmed
from sparring.store.rows import COLUMNS, Row
from sparring.wire.ids import GameId

BATCH_CHUNKS = 1_024  # removed at once

_ROWS = f"SELECT {COLUMNS}, arrived FROM chunks WHERE game = ? AND day = ? AND bucket = ?"
_POINT = "INSERT INTO chunks_by_player (game, mark, episode, seat) VALUES (?, ?, ?, ?)"
_KEPT = f"{_ROWS} AND episode = ?"
_GAMES = "SELECT DISTINCT game FROM days"
_ANY = "SELECT episode FROM chunks WHERE game = ? AND day = ? AND bucket = ? LIMIT 1"
_NO_BUCKET = "DELETE FROM buckets WHERE game = ? AND day = ? AND bucket = ?"
_NO_DAY = "DELETE FROM days WHERE game = ? AND day = ?"


def games(session: CassandraSession) -> list[GameId]:
    """Every game that has chunks, in order of name."""
    named = sorted(GameId(game) for (game,) in session.one(session.scan(_GAMES)))
    return [game for game in named if _has_any(session, game)]


def _has_any(session: CassandraSession, game: GameId) -> bool:
    for day, _ in reversed(reading.days(session, game)):
        partitions = [partition for partition, _ in reading.buckets(session, game, day)]
        if any(session.all(session.scan(_ANY, partition) for partition in partitions)):
            return True
    return False


class Trimmer:
    """Removes episodes and counts them."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._episodes = self._chunks = self._steps = 0

    def trim(self, *, before_ms: int, excess_bytes: int) -> Trimmed:
        """All episodes last received before `before_ms`, then the oldest until `excess_bytes` are gone, too."""
        touched = set()
        for game in games(self._session):
            if before_ms > 0 and self._remove(rows for rows in self._aged(game, before_ms)):
                touched.add(game)
        touched |= self._shrink(excess_bytes)
        for game in touched:
            erasure.removed(self._session, game)
        return Trimmed(self._episodes, self._chunks, self._steps)

    def _aged(self, game: GameId, before_ms: int) -> Iterator[list[StoredRow]]:
        for day, _ in reading.days(self._session, game):
            if day * DAY_MS >= before_ms + DAY_MS:  # an id may be a day ahead of its receipt
                return
            left = 0
            for rows in self._episodes_of(game, day):
                if max(row.received_at_ms for _, row, _ in rows) < before_ms:
                    yield rows
                else:
                    left += 1
            if not left and (day + 3) * DAY_MS < before_ms:  # ids that old are refused: nobody writes there again
                self._close(game, day)

    def _episodes_of(self, game: GameId, day: int) -> Iterator[list[StoredRow]]:
        """The episodes of a day in the order of opening."""
        streams = [self._rows(partition) for partition, _ in reading.buckets(self._session, game, day)]
        merged = heapq.merge(*streams, key=lambda one: (one[1].episode, one[1].seat, one[1].first_step))
        for _, rows in itertools.groupby(merged, key=lambda one: one[1].episode):
            yield list(rows)

    def _rows(self, partition: Partition) -> Iterator[StoredRow]:
        for row in self._session.pages(self._session.look(_ROWS, partition), reading.FIRST_ROWS, reading.ROWS):
            yield partition, Row(*row[:-1]), row[-1]

    def _shrink(self, excess_bytes: int) -> set[GameId]:
        """Day by day over all games, so that the oldest go first whichever game they are of."""
        touched: set[GameId] = set()
        listed = sorted((day, game) for game in games(self._session) for day, _ in reading.days(self._session, game))
        for day, game in listed if excess_bytes > 0 else ():
            chosen = []
            for rows in self._episodes_of(game, day):
                if excess_bytes <= 0:
                    break
                chosen.append(rows)
                excess_bytes -= sum(row.size_bytes for _, row, _ in rows)
            if chosen and self._remove(iter(chosen)):
                touched.add(game)
            if excess_bytes <= 0:
                break
        return touched

    def _remove(self, episodes: Iterator[list[StoredRow]]) -> int:
        gone, batch = 0, list[StoredRow]()
        for rows in episodes:
            batch += rows
            gone += 1
            self._chunks, self._steps = self._chunks + len(rows), self._steps + sum(row.steps for _, row, _ in rows)
            if len(batch) >= BATCH_CHUNKS:
                self._drop(batch)
                batch = []
        self._drop(batch)
        self._episodes += gone
        return gone

    def _drop(self, rows: list[StoredRow]) -> None:
        erasure.remove_rows(self._session, rows, time.time_ns() // 1_000)
        # A chunk that arrived in this very moment may have lost its pointer to the deletion: it is given back.
        for partition, episode in {(partition, row.episode) for partition, row, _ in rows}:
            for found in self._session.one(self._session.look(_KEPT, (*partition, episode))):
                row = Row(*found[:-1])
                if row.mark is not None:
                    self._session.one(self._session.write(_POINT, (row.game, row.mark, row.episode, row.seat)))

    def _close(self, game: GameId, day: int) -> None:
        for partition, _ in reading.buckets(self._session, game, day):
            self._session.one(self._session.write(_NO_BUCKET, partition))
        self._session.one(self._session.write(_NO_DAY, (game, day)))
