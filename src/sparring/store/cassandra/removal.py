"""Removing rows: a player's in every table (erasure), and whole old episodes (retention).

Erasing first writes the tombstone and a note that the work is not done; after a kill the next open or trim does the
rest. Rows are deleted with a timestamp a day ahead, so that no write by a fast clock survives it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from sparring.store.cassandra.partitions import DAY_MS, SELECT_ROWS, BucketLayout, Partition, Stored, stored
from sparring.store.cassandra.reader import buckets, days, merged
from sparring.store.cassandra.session import CassandraSession, hundreds
from sparring.store.protocol import Erased, Trimmed
from sparring.wire.ids import EpisodeId, GameId

BATCH_CHUNKS = 1_024  # removed at once by retention
TWICE_WITHIN_US = 600_000_000  # of each other, where two wrote the same chunk at once

_TOMBSTONES = "SELECT mark FROM tombstones WHERE game = ? AND mark IN ?"
_BURY = "INSERT INTO tombstones (game, mark, erased_at_ms) VALUES (?, ?, ?)"
_BEGIN = "INSERT INTO erasing (name, game, mark) VALUES ('pending', ?, ?)"
_END = "DELETE FROM erasing WHERE name = 'pending' AND game = ? AND mark = ?"
_PENDING = "SELECT game, mark FROM erasing WHERE name = 'pending'"
_POINTERS = "SELECT episode, seat FROM chunks_by_player WHERE game = ? AND mark = ?"
_SEAT = f"{SELECT_ROWS} AND episode = ? AND seat = ?"
_CHUNK = """DELETE FROM chunks USING TIMESTAMP ?
    WHERE game = ? AND day = ? AND bucket = ? AND episode = ? AND seat = ? AND first_step = ?"""
_ARRIVAL = """DELETE FROM chunks_by_arrival USING TIMESTAMP ?
    WHERE game = ? AND day = ? AND bucket = ? AND arrived = ? AND episode = ? AND seat = ? AND first_step = ?"""
_AROUND = """SELECT arrived, episode, seat, first_step FROM chunks_by_arrival
    WHERE game = ? AND day = ? AND bucket = ? AND arrived >= ? AND arrived <= ?"""
_POINTER = "DELETE FROM chunks_by_player USING TIMESTAMP ? WHERE game = ? AND mark = ? AND episode = ? AND seat = ?"
_POINT = "INSERT INTO chunks_by_player (game, mark, episode, seat) VALUES (?, ?, ?, ?)"
_KEPT = f"{SELECT_ROWS} AND episode = ?"
_GAMES = "SELECT DISTINCT game FROM days"
_ANY = "SELECT episode FROM chunks WHERE game = ? AND day = ? AND bucket = ? LIMIT 1"
_NO_BUCKET = "DELETE FROM buckets WHERE game = ? AND day = ? AND bucket = ?"
_NO_DAY = "DELETE FROM days WHERE game = ? AND day = ?"
_REMOVED = "UPDATE removals SET removed = removed + 1 WHERE game = ?"


def erased(session: CassandraSession, players: set[tuple[str, int | None]]) -> set[tuple[str, int | None]]:
    """Those of (game, mark) for which a tombstone stands."""
    by_game: dict[str, list[int]] = defaultdict(list)
    for game, mark in players:
        if mark is not None:
            by_game[game].append(mark)
    jobs = [(game, group) for game, marks in by_game.items() for group in hundreds(marks)]
    answers = session.all(session.look(_TOMBSTONES, job) for job in jobs)
    return {(game, mark) for (game, _), rows in zip(jobs, answers, strict=True) for (mark,) in rows}


def erasure_stamp() -> int:
    """Later than any writer's clock may be, in Cassandra's microseconds."""
    return time.time_ns() // 1_000 + DAY_MS * 1_000


def remove_rows(session: CassandraSession, rows: Iterable[Stored], stamp: int) -> None:
    """Delete chunks from every table; those of one partition together, so that none goes by halves."""
    placed: dict[Partition, dict[tuple[str, int, int], int]] = defaultdict(dict)
    pointers = set()
    for partition, row, arrived, *_ in rows:
        placed[partition][row.episode, row.seat, row.first_step] = arrived
        if row.mark is not None:
            pointers.add((row.game, row.mark, row.episode, row.seat))
    groups: dict[Partition, list[Any]] = {}
    for (partition, keys), around in zip(placed.items(), session.all(_around(session, placed)), strict=True):
        arrivals = {(at, *key) for key, at in keys.items()} | {one for one in around if one[1:] in keys}
        groups[partition] = [session.write(_CHUNK, (stamp, *partition, *key)) for key in keys]
        groups[partition] += [session.write(_ARRIVAL, (stamp, *partition, *one)) for one in sorted(arrivals)]
    session.all(session.batch(some) for group in groups.values() for some in hundreds(group))
    session.all(session.write(_POINTER, (stamp, *one)) for one in sorted(pointers))


def _around(session: CassandraSession, placed: dict[Partition, dict[tuple[str, int, int], int]]) -> Iterable[Any]:
    """What arrived about the time of those rows: a chunk that two wrote at once has two rows by arrival."""
    for partition, keys in placed.items():
        bounds = min(keys.values()) - TWICE_WITHIN_US, max(keys.values()) + TWICE_WITHIN_US
        yield session.look(_AROUND, (*partition, *bounds))


def erase(session: CassandraSession, layout: BucketLayout, game: GameId, mark: int) -> Erased:
    """Remove the rows of the player behind `mark`, and refuse more from now on."""
    session.all([session.write(_BEGIN, (game, mark)), session.write(_BURY, (game, mark, int(time.time() * 1000)))])
    gone = _clear(session, layout, game, mark)
    session.one(session.write(_END, (game, mark)))
    return gone


def finish(session: CassandraSession, layout: BucketLayout) -> None:
    """End the erasures that were begun and not finished."""
    for game, mark in session.one(session.look(_PENDING)):
        erase(session, layout, GameId(game), mark)


def removed(session: CassandraSession, game: GameId) -> None:
    """Make every reader count and sample from nothing again."""
    session.one(session.once(_REMOVED, (game,)))


def _clear(session: CassandraSession, layout: BucketLayout, game: GameId, mark: int) -> Erased:
    pointers = session.one(session.look(_POINTERS, (game, mark)))
    partitions = [(layout.partition(game, EpisodeId(episode)), episode, seat) for episode, seat in pointers]
    stamp, rows = erasure_stamp(), list[Stored]()
    answers = session.all(session.look(_SEAT, (*partition, episode, seat)) for partition, episode, seat in partitions)
    for (partition, _, _), found in zip(partitions, answers, strict=True):
        rows += [one for one in (stored(partition, columns) for columns in found) if one.row.mark == mark]
    remove_rows(session, rows, stamp)
    session.all(session.write(_POINTER, (stamp, game, mark, episode, seat)) for _, episode, seat in partitions)
    if rows:
        removed(session, game)
    received = [one.row.received_at_ms for one in rows]
    return Erased(
        chunks=len(rows),
        steps=sum(one.row.steps for one in rows),
        episodes=len({one.row.episode for one in rows}),
        first_received_ms=min(received, default=None),
        last_received_ms=max(received, default=None),
    )


def games(session: CassandraSession) -> list[GameId]:
    """Every game that has chunks, in order of name."""
    named = sorted(GameId(game) for (game,) in session.one(session.scan(_GAMES)))
    return [game for game in named if _has_any(session, game)]


def _has_any(session: CassandraSession, game: GameId) -> bool:
    for day, _ in reversed(days(session, game)):
        partitions = [partition for partition, _ in buckets(session, game, day)]
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
            if before_ms > 0 and self._remove(self._aged(game, before_ms)):
                touched.add(game)
        touched |= self._shrink(excess_bytes)
        for game in touched:
            removed(self._session, game)
        return Trimmed(self._episodes, self._chunks, self._steps)

    def _aged(self, game: GameId, before_ms: int) -> Iterator[list[Stored]]:
        for day, _ in days(self._session, game):
            if day * DAY_MS >= before_ms + DAY_MS:  # an id may be a day ahead of its receipt
                return
            left = 0
            for rows in self._episodes_of(game, day):
                if max(one.row.received_at_ms for one in rows) < before_ms:
                    yield rows
                else:
                    left += 1
            if (
                not left and (day + 3) * DAY_MS < before_ms
            ):  # ids that old are refused: no writer comes back to that day
                self._close(game, day)

    def _episodes_of(self, game: GameId, day: int) -> Iterator[list[Stored]]:
        """The episodes of a day in the order of opening."""
        return merged(self._session, [one for one, _ in buckets(self._session, game, day)], decides=True)

    def _shrink(self, excess_bytes: int) -> set[GameId]:
        """Day by day over all games, so that the oldest episodes go first, of any game."""
        touched: set[GameId] = set()
        listed = sorted((day, game) for game in games(self._session) for day, _ in days(self._session, game))
        for day, game in listed if excess_bytes > 0 else ():
            chosen = []
            for rows in self._episodes_of(game, day):
                if excess_bytes <= 0:
                    break
                chosen.append(rows)
                excess_bytes -= sum(one.row.size_bytes for one in rows)
            if chosen and self._remove(iter(chosen)):
                touched.add(game)
            if excess_bytes <= 0:
                break
        return touched

    def _remove(self, episodes: Iterator[list[Stored]]) -> int:
        gone, batch = 0, list[Stored]()
        for rows in episodes:
            batch += rows
            gone += 1
            self._chunks, self._steps = self._chunks + len(rows), self._steps + sum(one.row.steps for one in rows)
            if len(batch) >= BATCH_CHUNKS:
                self._drop(batch)
                batch = []
        self._drop(batch)
        self._episodes += gone
        return gone

    def _drop(self, rows: list[Stored]) -> None:
        remove_rows(self._session, rows, time.time_ns() // 1_000)
        # A chunk that arrived in this very moment may have lost its pointer to the deletion: it is given back.
        for partition, episode in {(one.partition, one.row.episode) for one in rows}:
            for found in self._session.one(self._session.look(_KEPT, (*partition, episode))):
                row = stored(partition, found).row
                if row.mark is not None:
                    self._session.one(self._session.write(_POINT, (row.game, row.mark, row.episode, row.seat)))

    def _close(self, game: GameId, day: int) -> None:
        for partition, _ in buckets(self._session, game, day):
            self._session.one(self._session.write(_NO_BUCKET, partition))
        self._session.one(self._session.write(_NO_DAY, (game, day)))
