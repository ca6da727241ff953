"""Keeping no more than was asked for: whole episodes go, the oldest first, and the file shrinks."""

import sqlite3

from sparring.store.protocol import Trimmed

BATCH_EPISODES = 256  # removed in one transaction, so that uploads wait for no more than that


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
    db.execute("BEGIN IMMEDIATE")
    try:
        for key in batch:
            rows = db.execute("SELECT id, steps FROM chunks WHERE game = ? AND episode = ?", key).fetchall()
            db.executemany("DELETE FROM bodies WHERE id = ?", [(row_id,) for row_id, _ in rows])
            db.execute("DELETE FROM chunks WHERE game = ? AND episode = ?", key)
            chunks, steps = chunks + len(rows), steps + sum(n for _, n in rows)
        db.execute("UPDATE counters SET value = value + 1 WHERE name = 'removals'")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return chunks, steps
