"""The sink's tables in the SQLite file: quarantined chunks, and counts by the minute."""

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, fields

from sparring.store import minute_counts
from sparring.store.protocol import Minute, MinuteCount, Quarantined
from sparring.wire.ids import GameId

PAGE_ROWS = 256

_QUARANTINED = ", ".join(one.name for one in fields(Quarantined))
_COUNT = ", ".join(minute_counts.COLUMNS)
_PUT_QUARANTINED = (
    f"INSERT OR REPLACE INTO quarantine ({_QUARANTINED}) VALUES ({', '.join('?' * len(fields(Quarantined)))})"
)
_PUT_COUNT = f"INSERT OR REPLACE INTO minutes ({_COUNT}) VALUES ({', '.join('?' * len(minute_counts.COLUMNS))})"
_GET_COUNT = f"SELECT {_COUNT} FROM minutes WHERE game = ? AND minute_ms >= ? ORDER BY minute_ms"


def quarantine(db: sqlite3.Connection, rows: Sequence[Quarantined]) -> None:
    """Inside a transaction of the caller's."""
    db.executemany(_PUT_QUARANTINED, map(astuple, rows))


def quarantine_page(db: sqlite3.Connection, game: GameId, after: Quarantined | None) -> list[Quarantined]:
    """The next rows of a game in the order of arrival."""
    at = (after.arrived_ms, after.shard, after.position) if after else (-1 << 63, "", "")
    found = db.execute(
        f"""SELECT {_QUARANTINED} FROM quarantine WHERE game = ? AND (arrived_ms, shard, position) > (?, ?, ?)
        ORDER BY arrived_ms, shard, position LIMIT {PAGE_ROWS}""",
        (game, *at),
    )
    return [Quarantined(*row) for row in found]


def count(db: sqlite3.Connection, rows: Sequence[MinuteCount]) -> None:
    """Inside a transaction of the caller's."""
    db.executemany(_PUT_COUNT, map(minute_counts.to_row, rows))


def minutes(db: sqlite3.Connection, game: GameId, since_ms: int) -> list[Minute]:
    """Summed over the batches."""
    return minute_counts.by_minute(map(minute_counts.from_row, db.execute(_GET_COUNT, (game, since_ms))))


def trim(db: sqlite3.Connection, before_ms: int) -> None:
    """Forget what arrived before that."""
    db.execute("DELETE FROM quarantine WHERE arrived_ms < ?", (before_ms,))
    db.execute("DELETE FROM minutes WHERE minute_ms < ?", (before_ms,))
