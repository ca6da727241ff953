"""Forgetting: a player's rows in every table, and episodes past retention.

Erasing first leaves the tombstone and a note that the work is not done; a process killed after that leaves the
rest to the next open or trim. Rows are deleted at a time a day ahead, so that no writer's fast clock outlives it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sparring.store.cassandra.partitions import DAY_MS, Layout, Place
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

Placed = tuple[Place, Row, int]  # where, what, and its stamp of arrival


def erased(ring: CassandraSession, players: set[tuple[str, int | None]]) -> set[tuple[str, int | None]]:
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
    answers = ring.all(ring.look(_TOMBSTONES, job) for job in jobs)
    return {(game, mark) for (game, _), rows in zip(jobs, answers, strict=True) for (mark,) in rows}


def erasure_stamp() -> int:
    """Later than any writer's clock may be, in Cassandra's microseconds."""
    return time.time_ns() // 1_000 + DAY_MS * 1_000


def remove_rows(ring: CassandraSession, rows: Iterable[Placed], stamp: int) -> None:
    """Delete chunks from every table; those of one partition together, so that none goes by halves."""
    placed: dict[Place, dict[tuple[str, int, int], int]] = defaultdict(dict)
    pointers = set()
    for place, row, arrived in rows:
        placed[place][row.episode, row.seat, row.first_step] = arrived
        if row.mark is not None:
            pointers.add((row.game, row.mark, row.episode, row.seat))
    groups: dict[Place, list[Any]] = {}
    for (place, keys), around in zip(placed.items(), ring.all(_around(ring, placed)), strict=True):
        arrivals = {(at, *key) for key, at in keys.items()} | {one for one in around if one[1:] in keys}
        groups[place] = [ring.write(_CHUNK, (stamp, *place, *key)) for key in keys]
        groups[place] += [ring.write(_ARRIVAL, (stamp, *place, *one)) for one in sorted(arrivals)]
    batches = [
        ring.batch(group[at : at + DELETES_AT_ONCE])
        for group in groups.values()
        for at in range(0, len(group), DELETES_AT_ONCE)
    ]
    ring.all(batches)
    ring.all(ring.write(_POINTER, (stamp, *one)) for one in sorted(pointers))


def _around(ring: CassandraSession, placed: dict[Place, dict[tuple[str, int, int], int]]) -> Iterable[Any]:
    """What arrived about the time of those rows: a chunk that two wrote at once has two rows by arrival."""
    for place, keys in placed.items():
        bounds = min(keys.values()) - TWICE_WITHIN_US, max(keys.values()) + TWICE_WITHIN_US
        yield ring.look(_AROUND, (*place, *bounds))


def erase(ring: CassandraSession, layout: Layout, game: GameId, mark: int) -> Erased:
    """Remove the rows of the player behind `mark`, and refuse more from now on."""
    ring.all([ring.write(_BEGIN, (game, mark)), ring.write(_BURY, (game, mark, int(time.time() * 1000)))])
    gone = _clear(ring, layout, game, mark)
    ring.one(ring.write(_END, (game, mark)))
    return gone


def finish(ring: CassandraSession, layout: Layout) -> None:
    """End the erasures that were begun and not finished."""
    for game, mark in ring.one(ring.look(_PENDING)):
        erase(ring, layout, GameId(game), mark)


def removed(ring: CassandraSession, game: GameId) -> None:
    """Tell every reader that what it counted no longer holds."""
    ring.one(ring.once(_REMOVED, (game,)))


def _clear(ring: CassandraSession, layout: Layout, game: GameId, mark: int) -> Erased:
    pointers = ring.one(ring.look(_POINTERS, (game, mark)))
    places = [(layout.place(game, EpisodeId(episode)), episode, seat) for episode, seat in pointers]
    stamp, rows = erasure_stamp(), list[Placed]()
    answers = ring.all(ring.look(_SEAT, (*place, episode, seat)) for place, episode, seat in places)
    for (place, _, _), found in zip(places, answers, strict=True):
        rows += [(place, Row(*one[:-1]), one[-1]) for one in found if Row(*one[:-1]).mark == mark]
    remove_rows(ring, rows, stamp)
    ring.all(ring.write(_POINTER, (stamp, game, mark, episode, seat)) for _, episode, seat in places)
    if rows:
        removed(ring, game)
    received = [row.received_at_ms for _, row, _ in rows]
    return Erased(
        chunks=len(rows),
        steps=sum(row.steps for _, row, _ in rows),
        episodes=len({row.episode for _, row, _ in rows}),
        first_received_ms=min(received, default=None),
        last_received_ms=max(received, default=None),
    )
