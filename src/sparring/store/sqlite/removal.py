"""Removing rows: a player's episodes (erasure) and whole old ones (retention).

Erasing removes the rows and writes tombstones in one transaction, with a note that scrubbing is still to do; after a
kill between the two the next open scrubs. Scrubbing writes the whole file again (VACUUM): secure_delete
clears what is deleted, but a page that was split or merged earlier may hold an older copy of it.
"""

import mmap
import sqlite3
import time
from pathlib import Path

from sparring.errors import StoreFailed
from sparring.store.protocol import NO_VIEWS, Erased, Trimmed, Views
from sparring.store.records import MINUTE_COLUMNS, MINUTE_MS, insert, minute_count, minute_row, minutes_without
from sparring.store.rows import COLUMNS, Row, erased_of, mark, to_erase
from sparring.store.sqlite.database import transaction
from sparring.wire.ids import EpisodeId, GameId, PlayerId

BATCH_EPISODES = 256  # removed in one transaction, so that uploads wait for no more than that
SCRUB_AT_ONCE_BYTES = 1 << 30  # some ten seconds; a larger file is scrubbed by the next trim or open

_MINUTE = f"SELECT {', '.join(MINUTE_COLUMNS)} FROM minutes WHERE game = ? AND minute_ms = ?"
_NO_MINUTE = "DELETE FROM minutes WHERE game = ? AND minute_ms = ? AND batch = ?"


def erase(db: sqlite3.Connection, path: Path, game: GameId, player: PlayerId, views: Views) -> Erased:
    """Remove the player's episodes and every trace of them in the file and its log."""
    sign = mark(game, player)
    with transaction(db):
        theirs = db.execute("SELECT DISTINCT episode FROM chunks WHERE mark = ? AND game = ?", (sign, game)).fetchall()
        _bury(db, game, [sign])
        gone = erase_episodes(db, game, [episode for (episode,) in theirs], sign, views)
    empty_log(db, str(path))
    if path.stat().st_size <= SCRUB_AT_ONCE_BYTES or _holds(path, player.encode()):
        finish(db, str(path))
    else:
        give_back_pages(db)
        empty_log(db, str(path))
    return erased_of(gone)


def erase_episodes(
    db: sqlite3.Connection, game: GameId, episodes: list[EpisodeId], player: int, views: Views = NO_VIEWS
) -> list[Row]:
    """Remove from the episodes what shows the moves of the player of that mark, and refuse it from now on; what went.
    Inside a transaction."""
    gone: list[Row] = []
    for episode in episodes:
        found = db.execute(f"SELECT id, {COLUMNS} FROM chunks WHERE game = ? AND episode = ?", (game, episode))
        rows = {Row(*values): row_id for row_id, *values in found}
        leaving, marks = to_erase(game, episode, list(rows), player, views)
        _bury(db, game, marks)
        for table in ("bodies", "chunks"):
            db.executemany(f"DELETE FROM {table} WHERE id = ?", [(rows[row],) for row in leaving])
        gone += leaving
    if gone:
        db.execute("UPDATE counters SET value = value + 1 WHERE name = 'removals'")
        db.execute("UPDATE counters SET value = 1 WHERE name = 'scrub'")
    _uncount(db, game, gone, player)
    return gone


def _bury(db: sqlite3.Connection, game: GameId, marks: list[int]) -> None:
    rows = [(game, one, int(time.time() * 1000)) for one in marks]
    db.executemany("INSERT OR IGNORE INTO tombstones VALUES (?, ?, ?)", rows)


def _uncount(db: sqlite3.Connection, game: GameId, gone: list[Row], player: int) -> None:
    """Take the rows out of the sink's counts by the minute."""
    minutes = sorted({row.received_at_ms // MINUTE_MS * MINUTE_MS for row in gone if row.batch_id})
    found = [row for minute_ms in minutes for row in db.execute(_MINUTE, (game, minute_ms))]
    for before, after in minutes_without(map(minute_count, found), gone, player):
        db.execute(_NO_MINUTE, (game, before.minute_ms, before.batch))
        if after.chunks:
            db.execute(insert("minutes", MINUTE_COLUMNS), minute_row(after))


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
        do = "Stop the reader and do it again; the next trim or open finishes it too"
        raise StoreFailed("the rows are gone, but a reader still holds the log that quotes them", where=where, do=do)


def _holds(path: Path, text: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


def trim(db: sqlite3.Connection, *, before_ms: int, max_bytes: int) -> Trimmed:
    """Remove episodes whose last chunk came before `before_ms`, then the oldest until `max_bytes` hold the rest."""
    episodes = chunks = steps = 0
    while batch := _too_old(db, before_ms) or _too_much(db, max_bytes):
        gone = _remove(db, batch)
        episodes, chunks, steps = episodes + len(batch), chunks + gone[0], steps + gone[1]
    if episodes:
        give_back_pages(db)
        # A reader in another process may hold the log; then it shrinks at the next checkpoint instead.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return Trimmed(episodes, chunks, steps)


def give_back_pages(db: sqlite3.Connection) -> None:
    """Cut the free pages off the file's end."""
    # The pragma makes one step per page and returns rows without columns, at which execute() stops.
    db.executescript("PRAGMA incremental_vacuum")


def _too_old(db: sqlite3.Connection, before_ms: int) -> list[tuple[str, str]]:
    if before_ms <= 0:
        return []
    return db.execute(
        f"""SELECT DISTINCT c.game, c.episode FROM chunks c WHERE c.received_at_ms < ? AND NOT EXISTS (
            SELECT 1 FROM chunks l WHERE l.game = c.game AND l.episode = c.episode AND l.received_at_ms >= ?)
            LIMIT {BATCH_EPISODES}""",
        (before_ms, before_ms),
    ).fetchall()


def _too_much(db: sqlite3.Connection, max_bytes: int) -> list[tuple[str, str]]:
    if max_bytes <= 0:
        return []
    (used,) = db.execute(
        """SELECT (p.page_count - f.freelist_count) * s.page_size
        FROM pragma_page_count p, pragma_freelist_count f, pragma_page_size s"""
    ).fetchone()
    batch: list[tuple[str, str]] = []
    # By the first chunk of each: the table's own order, so that a batch costs no more than its rows.
    oldest = db.execute(f"SELECT game, episode FROM chunks ORDER BY id LIMIT {4 * BATCH_EPISODES}").fetchall()
    for key in dict.fromkeys(oldest):
        if used <= max_bytes or len(batch) == BATCH_EPISODES:
            break
        used -= db.execute("SELECT sum(size_bytes) FROM chunks WHERE game = ? AND episode = ?", key).fetchone()[0]
        batch.append(key)
    return batch


def _remove(db: sqlite3.Connection, batch: list[tuple[str, str]]) -> tuple[int, int]:
    chunks = steps = 0
    with transaction(db):
        for key in batch:
            rows = db.execute("SELECT id, steps FROM chunks WHERE game = ? AND episode = ?", key).fetchall()
            db.executemany("DELETE FROM bodies WHERE id = ?", [(row_id,) for row_id, _ in rows])
            db.execute("DELETE FROM chunks WHERE game = ? AND episode = ?", key)
            chunks, steps = chunks + len(rows), steps + sum(n for _, n in rows)
        db.execute("UPDATE counters SET value = value + 1 WHERE name = 'removals'")
    return chunks, steps
