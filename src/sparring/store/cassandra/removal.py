"""Removing rows: a player's episodes in every table (erasure), and whole old ones (retention).

Erasing first writes the tombstone and a note that the work is not done; after a kill the next open or trim does the
rest, of every seat, since it does not know the game's spec. Rows are deleted with a timestamp a day ahead, so that no
write by a fast clock survives it.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sparring.store.cassandra.reader import buckets, days, merged
from sparring.store.cassandra.schema import DAY_MS, SELECT_ROWS, BucketLayout, Partition, Stored, stored
from sparring.store.cassandra.session import CassandraSession, hundreds
from sparring.store.protocol import NO_VIEWS, Erased, Trimmed, Views
from sparring.store.records import MINUTE_COLUMNS, MINUTE_MS, insert, minute_count, minute_row, minutes_without
from sparring.store.rows import Row, erased_of, late_rows, to_erase, tombstone_marks
from sparring.wire.ids import EpisodeId, GameId

BATCH_CHUNKS = 1_024  # removed at once by retention
TWICE_WITHIN_US = 600_000_000  # of each other, where two wrote the same chunk at once

_TOMBSTONES = "SELECT mark FROM tombstones WHERE game = ? AND mark IN ?"
_BURY = "INSERT INTO tombstones (game, mark, erased_at_ms) VALUES (?, ?, ?)"
_BEGIN = "INSERT INTO erasing (name, game, mark) VALUES ('pending', ?, ?)"
_END = "DELETE FROM erasing WHERE name = 'pending' AND game = ? AND mark = ?"
_PENDING = "SELECT game, mark FROM erasing WHERE name = 'pending'"
_POINTERS = "SELECT episode, seat FROM chunks_by_player WHERE game = ? AND mark = ?"
_CHUNK = """DELETE FROM chunks USING TIMESTAMP ?
    WHERE game = ? AND day = ? AND bucket = ? AND episode = ? AND seat = ? AND first_step = ?"""
_ARRIVAL = """DELETE FROM chunks_by_arrival USING TIMESTAMP ?
    WHERE game = ? AND day = ? AND bucket = ? AND arrived = ? AND episode = ? AND seat = ? AND first_step = ?"""
_AROUND = """SELECT arrived, episode, seat, first_step FROM chunks_by_arrival
    WHERE game = ? AND day = ? AND bucket = ? AND arrived >= ? AND arrived <= ?"""
_POINTER = "DELETE FROM chunks_by_player USING TIMESTAMP ? WHERE game = ? AND mark = ? AND episode = ? AND seat = ?"
POINT = "INSERT INTO chunks_by_player (game, mark, episode, seat) VALUES (?, ?, ?, ?)"
_KEPT = f"{SELECT_ROWS} AND episode = ?"
_GAMES = "SELECT DISTINCT game FROM days"
_ANY = "SELECT episode FROM chunks WHERE game = ? AND day = ? AND bucket = ? LIMIT 1"
_NO_BUCKET = "DELETE FROM buckets WHERE game = ? AND day = ? AND bucket = ?"
_NO_DAY = "DELETE FROM days WHERE game = ? AND day = ?"
COUNT_COLUMNS = ["batch_id" if name == "batch" else name for name in MINUTE_COLUMNS]  # the one is a CQL word
PUT_COUNT = insert("minutes", [*COUNT_COLUMNS, "day"])
_MINUTE = f"SELECT {', '.join(COUNT_COLUMNS)} FROM minutes WHERE game = ? AND day = ? AND minute_ms = ?"
_NO_MINUTE = "DELETE FROM minutes WHERE game = ? AND day = ? AND minute_ms = ? AND batch_id = ?"
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


def erase(session: CassandraSession, layout: BucketLayout, game: GameId, mark: int, views: Views = NO_VIEWS) -> Erased:
    """Remove the episodes of the player behind `mark`, and refuse more from now on."""
    session.one(session.write(_BEGIN, (game, mark)))
    _bury(session, game, [mark])
    pointers = session.one(session.look(_POINTERS, (game, mark)))
    gone = erase_episodes(session, layout, game, sorted({EpisodeId(one) for one, _ in pointers}), mark, views)
    stamp = erasure_stamp()
    session.all(session.write(_POINTER, (stamp, game, mark, episode, seat)) for episode, seat in pointers)
    session.one(session.write(_END, (game, mark)))
    return erased_of(gone)


def erase_episodes(
    session: CassandraSession,
    layout: BucketLayout,
    game: GameId,
    episodes: Sequence[EpisodeId],
    player: int,
    views: Views = NO_VIEWS,
) -> list[Row]:
    """Remove from the episodes what shows the moves of the player of that mark, and refuse it from now on."""
    gone: list[Row] = []
    for group in hundreds(episodes):
        found = zip(group, _rows_of(session, layout, game, group), strict=True)
        _bury(
            session, game, [one for episode, rows in found for one in _leaving(game, episode, rows, player, views)[1]]
        )
        # Looked at again: a writer sees the tombstones, or its rows are here.
        found = zip(group, _rows_of(session, layout, game, group), strict=True)
        leaving = [one for episode, rows in found for one in _leaving(game, episode, rows, player, views)[0]]
        remove_rows(session, leaving, erasure_stamp())
        gone += [one.row for one in leaving]
    if gone:
        removed(session, game)
    _uncount(session, game, gone, player)
    return gone


def erase_late(
    session: CassandraSession, layout: BucketLayout, rows: Iterable[Row], gone: set[tuple[str, int | None]]
) -> None:
    """An erased player played on, or their chunk was late: the other seats of that episode go, too."""
    for row in late_rows(rows, gone):
        game, episode = GameId(row.game), EpisodeId(row.episode)
        (found,) = _rows_of(session, layout, game, [episode])
        # Only by one whose seat it is: a stranger who knows an episode's name must not remove it.
        if row.mark is None or any(one.row.seat == row.seat and one.row.uploader != row.uploader for one in found):
            continue
        erase_episodes(session, layout, game, [episode], row.mark)
        gone.add((row.game, tombstone_marks(row)[0]))


def _rows_of(
    session: CassandraSession, layout: BucketLayout, game: GameId, episodes: Sequence[EpisodeId]
) -> list[list[Stored]]:
    places = [layout.partition(game, episode) for episode in episodes]
    answers = session.all(session.look(_KEPT, (*at, one)) for at, one in zip(places, episodes, strict=True))
    return [[stored(at, found) for found in rows] for at, rows in zip(places, answers, strict=True)]


def _leaving(
    game: GameId, episode: EpisodeId, found: list[Stored], player: int, views: Views
) -> tuple[list[Stored], list[int]]:
    rows, marks = to_erase(game, episode, [one.row for one in found], player, views)
    seats = {row.seat for row in rows}
    return [one for one in found if one.row.seat in seats], marks


def _bury(session: CassandraSession, game: GameId, marks: Sequence[int]) -> None:
    now_ms = int(time.time() * 1000)
    session.all(session.write(_BURY, (game, one, now_ms)) for one in marks)


def _uncount(session: CassandraSession, game: GameId, gone: list[Row], player: int) -> None:
    """Take the rows out of the sink's counts by the minute."""
    minutes = sorted({row.received_at_ms // MINUTE_MS * MINUTE_MS for row in gone if row.batch_id})
    answers = session.all(session.look(_MINUTE, (game, at_ms // DAY_MS, at_ms)) for at_ms in minutes)
    found = (minute_count(row) for rows in answers for row in rows)
    for before, after in minutes_without(found, gone, player):
        day = before.minute_ms // DAY_MS
        drop = session.write(_NO_MINUTE, (game, day, before.minute_ms, before.batch))
        session.one(session.write(PUT_COUNT, (*minute_row(after), day)) if after.chunks else drop)


def finish(session: CassandraSession, layout: BucketLayout) -> None:
    """End the erasures that were begun and not finished."""
    for game, mark in session.one(session.look(_PENDING)):
        erase(session, layout, GameId(game), mark)


def removed(session: CassandraSession, game: GameId) -> None:
    """Make every reader count and sample from nothing again."""
    session.one(session.once(_REMOVED, (game,)))


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


def trim(session: CassandraSession, *, before_ms: int, excess_bytes: int) -> Trimmed:
    """All episodes last received before `before_ms`, then the oldest of any game until `excess_bytes` are gone."""
    gone, touched = Counter[str](), set[GameId]()
    listed = sorted((day, game) for game in games(session) for day, _ in days(session, game))
    for by_age in (True, False):
        for day, game in listed:
            # An id may be a day ahead of its receipt.
            if day * DAY_MS >= before_ms + DAY_MS if by_age else excess_bytes <= 0:
                break
            left, batch = 0, list[Stored]()
            for rows in merged(session, [one for one, _ in buckets(session, game, day)], decides=True):
                if not by_age and excess_bytes <= 0:
                    left += 1
                    break
                if by_age and max(one.row.received_at_ms for one in rows) >= before_ms:
                    left += 1
                    continue
                touched.add(game)
                batch += rows
                excess_bytes -= sum(one.row.size_bytes for one in rows)
                gone.update(episodes=1, chunks=len(rows), steps=sum(one.row.steps for one in rows))
                if len(batch) >= BATCH_CHUNKS:
                    _drop(session, batch)
                    batch = []
            _drop(session, batch)
            if (
                not left and (day + 3) * DAY_MS < before_ms
            ):  # ids that old are refused: no writer comes back to that day
                _close(session, game, day)
    for game in touched:
        removed(session, game)
    return Trimmed(gone["episodes"], gone["chunks"], gone["steps"])


def _drop(session: CassandraSession, rows: list[Stored]) -> None:
    remove_rows(session, rows, time.time_ns() // 1_000)
    # A chunk that arrived in this very moment may have lost its pointer to the deletion: it is given back.
    for partition, episode in {(one.partition, one.row.episode) for one in rows}:
        for found in session.one(session.look(_KEPT, (*partition, episode))):
            row = stored(partition, found).row
            if row.mark is not None:
                session.one(session.write(POINT, (row.game, row.mark, row.episode, row.seat)))


def _close(session: CassandraSession, game: GameId, day: int) -> None:
    for partition, _ in buckets(session, game, day):
        session.one(session.write(_NO_BUCKET, partition))
    session.one(session.write(_NO_DAY, (game, day)))
