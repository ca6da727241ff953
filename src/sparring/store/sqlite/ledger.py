"""The sink's tables in the SQLite file: what was put aside, and counts by the minute."""

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, fields

from sparring.store.minute_counts import packed, summed, unpacked
from sparring.store.protocol import Minute, MinuteCount, Quarantined
from sparring.wire.ids import GameId

PAGE_ROWS = 256

_ASIDE = ", ".join(one.name for one in fields(Quarantined))
_COUNT = ", ".join(one.name for one in fields(MinuteCount))
_PUT_ASIDE = f"INSERT OR REPLACE INTO quarantine ({_ASIDE}) VALUES ({', '.join('?' * len(fields(Quarantined)))})"
_PUT_COUNT = f"INSERT OR REPLACE INTO minutes ({_COUNT}) VALUES ({', '.join('?' * len(fields(MinuteCount)))})"
_PLAYERS = [one.name for one in fields(MinuteCount)].index("players")


def quarantine(db: sqlite3.Connection, rows: Sequence[Quarantined]) -> None:
    """Inside a transaction of the caller's."""
    db.executemany(_PUT_ASIDE, map(astuple, rows))


def quarantine_page(db: sqlite3.Connection, game: GameId, after: Quarantined | None) -> list[Quarantined]:
    """The next rows of a game in the order of arrival."""
    at = (after.arrived_ms, after.shard, after.position) if after else (-1 << 63, "", "")
    found = db.execute(
        f"""SELECT {_ASIDE} FROM quarantine WHERE game = ? AND (arrived_ms, shard, position) > (?, ?, ?)
        ORDER BY arrived_ms, shard, position LIMIT {PAGE_ROWS}""",
        (game, *at),
    )
    return [Quarantined(*row) for row in found]


def count(db: sqlite3.Connection, rows: Sequence[MinuteCount]) -> None:
    """Inside a transaction of the caller's."""
    for row in rows:
        values = list(astuple(row))
        values[_PLAYERS] = packed(row.players)
        db.execute(_PUT_COUNT, values)


def minutes(db: sqlite3.Connection, game: GameId, since_ms: int) -> list[Minute]:
    """Summed over the batches."""
    counts = []
    for row in db.execute(
        f"SELECT {_COUNT} FROM minutes WHERE game = ? AND minute_ms >= ? ORDER BY minute_ms", (game, since_ms)
    ):
        values = list(row)
        values[_PLAYERS] = unpacked(row[_PLAYERS])
        counts.append(MinuteCount(*values))
    return summed(counts)


def trim(db: sqlite3.Connection, before_ms: int) -> None:
    """Forget what arrived before that."""
    db.execute("DELETE FROM quarantine WHERE arrived_ms < ?", (before_ms,))
    db.execute("DELETE FROM minutes WHERE minute_ms < ?", (before_ms,))
