"""Forgetting a player: rows, the pages they were on, and the log that still quotes them.

The rows go and the tombstone comes in one transaction, with a mark that the scrubbing is still to do;
a process killed between the two finishes on the next open. Scrubbing writes the file anew: secure_delete
clears what is deleted, but a page that was split or merged earlier may hold an older copy of it.
"""

import mmap
import sqlite3
import time
from pathlib import Path

from sparring.errors import StoreFailed
from sparring.store.protocol import Erased
from sparring.store.rows import mark
from sparring.store.sqlite.retention import give_back_pages
from sparring.wire.ids import GameId, PlayerId

SCRUB_AT_ONCE_BYTES = 1 << 30  # some ten seconds; a larger file is scrubbed by the next trim or open


def erase(db: sqlite3.Connection, path: Path, game: GameId, player: PlayerId) -> Erased:
    """Remove the player's seats and every trace of them in the file and its log."""
    sign = mark(game, player)
    db.execute("BEGIN IMMEDIATE")
    try:
        gone = db.execute(
            """SELECT count(*), coalesce(sum(steps), 0), count(DISTINCT episode), min(received_at_ms),
            max(received_at_ms) FROM chunks WHERE mark = ? AND game = ?""",
            (sign, game),
        ).fetchone()
        db.execute("DELETE FROM bodies WHERE id IN (SELECT id FROM chunks WHERE mark = ? AND game = ?)", (sign, game))
        db.execute("DELETE FROM chunks WHERE mark = ? AND game = ?", (sign, game))
        now_ms = int(time.time() * 1000)
        db.execute("INSERT OR IGNORE INTO tombstones VALUES (?, ?, ?)", (game, sign, now_ms))
        if gone[0]:
            db.execute("UPDATE counters SET value = value + 1 WHERE name = 'removals'")
            db.execute("UPDATE counters SET value = 1 WHERE name = 'scrub'")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    empty_log(db, str(path))
    if path.stat().st_size <= SCRUB_AT_ONCE_BYTES or _holds(path, player.encode()):
        finish(db, str(path))
    else:
        give_back_pages(db)
        empty_log(db, str(path))
    return Erased(*gone)


def finish(db: sqlite3.Connection, where: str) -> None:
    """Scrub the file if that is still to do."""
    (pending,) = db.execute("SELECT value FROM counters WHERE name = 'scrub'").fetchone()
    if pending:
        db.execute("VACUUM")
        empty_log(db, where)
        db.execute("UPDATE counters SET value = 0 WHERE name = 'scrub'")
        empty_log(db, where)


def empty_log(db: sqlite3.Connection, where: str) -> None:
    """Move everything into the file and cut the log to nothing; StoreFailed while a reader holds it."""
    busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise StoreFailed(
            "the rows are gone, but a reader still holds the log that quotes them",
            where=where,
            do="Stop the reader and do it again; the next trim or open finishes it too",
        )


def _holds(path: Path, text: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0
