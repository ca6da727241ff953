"""Forgetting: a player's rows in every table, and episodes past retention.

Erasing first leaves the tombstone and a note that the work is not done; a process killed after that leaves the
rest to the next open or trim. Rows are deleted at a time a day ahead, so that no writer's fast clock outlives it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sparring.store.cassandra.partitions import DAY_MS, BucketLayout, Partition
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import Erased
from sparring.store.rows import COLUMNS, Row
from sparring.wire.ids import EpisodeId, GameId

MARKS_AT_ONCE = 100
DELETES_AT_ONCE = 100  # statements in one batch, some 10 KB
TWICE_WITHIN_US = 600_000_000  # of each other, where two wrote the same chunk at once

_TOMBSTONES = "SELECT mark FROM tombstones WHERE game = ? AND mark IN ?"
_BURY = "INSERT INTO tombstones (game, mark, erased_at_ms) VALUES (?, ?, ?)"
_BEGIN = "INSERT INTO erasing (name, game, mark) VALUES ('pending', ?, ?)"
_END = "DELETE FROM erasing WHERE name = 'pending' AND game = ? AND mark = ?"
_PENDING = "SELECT game, mark FROM erasing WHERE name = 'pending'"
_POINTERS = "SELECT episode, seat FROM chunks_by_player WHERE game = ? AND mark = ?"
_SEAT = f"""SELECT {COLUMNS}, arrived FROM chunks
    WHERE game = ? AND day = ? AND bucket = ? AND episode = ? AND seat = ?"""
_CHUNK = """DELETE FROM chunks USING TIMESTAMP ?
    WHERE game = ? AND day = ? AND bucket = ? AND episode = ? AND seat = ? AND first_step = ?"""
_ARRIVAL = """DELETE FROM chunks_by_arrival USING TIMESTAMP ?
    WHERE game = ? AND day = ? AND bucket = ? AND arrived = ? AND episode = ? AND seat = ? AND first_step = ?"""
_AROUND = """SELECT arrived, episode, seat, first_step FROM chunks_by_arrival
    WHERE game = ? AND day = ? AND bucket = ? AND arrived >= ? AND arrived <= ?"""
_POINTER = "DELETE FROM chunks_by_player USING TIMESTAMP ? WHERE game = ? AND mark = ? AND episode = ? AND seat = ?"
_REMOVED = "UPDATE removals SET removed = removed + 1 WHERE game = ?"

StoredRow = tuple[Partition, Row, int]  # where, what, and its stamp of arrival


def erased(session: CassandraSession, players: set[tuple[str, int | None]]) -> set[tuple[str, int | None]]:
    """Those of (game, mark) for which a tombstone stands."""
    by_game: dict[str, list[int]] = defaultdict(list)
    for game, mark in players:
        if mark is not None:
            by_game[game].append(mark)
    jobs = [
        (game, marks[at : at + MARKS_AT_ONCE])
        for game, marks in by_game.items()
        for at in range(0, len(marks), MARKS_AT_ONCE)
    ]
    answers = session.all(session.look(_TOMBSTONES, job) for job in jobs)
    return {(game, mark) for (game, _), rows in zip(jobs, answers, strict=True) for (mark,) in rows}


def erasure_stamp() -> int:
    """Later than any writer's clock may be, in Cassandra's microseconds."""
    return time.time_ns() // 1_000 + DAY_MS * 1_000


def remove_rows(session: CassandraSession, rows: Iterable[StoredRow], stamp: int) -> None:
    """Delete chunks from every table; those of one partition together, so that none goes by halves."""
    placed: dict[Partition, dict[tuple[str, int, int], int]] = defaultdict(dict)
    pointers = set()
    for partition, row, arrived in rows:
        placed[partition][row.episode, row.seat, row.first_step] = arrived
        if row.mark is not None:
            pointers.add((row.game, row.mark, row.episode, row.seat))
    groups: dict[Partition, list[Any]] = {}
    for (partition, keys), around in zip(placed.items(), session.all(_around(session, placed)), strict=True):
        arrivals = {(at, *key) for key, at in keys.items()} | {one for one in around if one[1:] in keys}
        groups[partition] = [session.write(_CHUNK, (stamp, *partition, *key)) for key in keys]
        groups[partition] += [session.write(_ARRIVAL, (stamp, *partition, *one)) for one in sorted(arrivals)]
    batches = [
        session.batch(group[at : at + DELETES_AT_ONCE])
        for group in groups.values()
        for at in range(0, len(group), DELETES_AT_ONCE)
    ]
    session.all(batches)
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
    """Tell every reader that what it counted no longer holds."""
    session.one(session.once(_REMOVED, (game,)))


def _clear(session: CassandraSession, layout: BucketLayout, game: GameId, mark: int) -> Erased:
    pointers = session.one(session.look(_POINTERS, (game, mark)))
    partitions = [(layout.partition(game, EpisodeId(episode)), episode, seat) for episode, seat in pointers]
    stamp, rows = erasure_stamp(), list[StoredRow]()
    answers = session.all(session.look(_SEAT, (*partition, episode, seat)) for partition, episode, seat in partitions)
    for (partition, _, _), found in zip(partitions, answers, strict=True):
        rows += [(partition, Row(*one[:-1]), one[-1]) for one in found if Row(*one[:-1]).mark == mark]
    remove_rows(session, rows, stamp)
    session.all(session.write(_POINTER, (stamp, game, mark, episode, seat)) for _, episode, seat in partitions)
    if rows:
        removed(session, game)
    received = [row.received_at_ms for _, row, _ in rows]
    return Erased(
        chunks=len(rows),
        steps=sum(row.steps for _, row, _ in rows),
        episodes=len({row.episode for _, row, _ in rows}),
        first_received_ms=min(received, default=None),
        last_received_ms=max(received, default=None),
    )
