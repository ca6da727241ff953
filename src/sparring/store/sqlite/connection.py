"""Connections to the SQLite file whose commits are durable, and what SQLite's errors mean for an operator."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparring.errors import StoreFailed, StoreRefused

PAGE_BYTES = 8192

# By primary result code (sqlite.org/rescode.html): what is wrong, what to do.
_SENTENCES = {
    sqlite3.SQLITE_FULL: ("the disk is full", "Free some space, or set store.keep_bytes; nothing of it was kept"),
    # A failed fsync leaves it open what the disk has: all of an append or nothing, never a part.
    sqlite3.SQLITE_IOERR: ("the disk failed", "Look at the disk, start again and send it again: twice is harmless"),
    sqlite3.SQLITE_READONLY: ("the file may not be written", "Make it and its folder writable"),
    sqlite3.SQLITE_BUSY: ("another process holds the file", "Wait for it to finish, or stop it"),
    sqlite3.SQLITE_LOCKED: ("another connection holds the file", "Wait for it to finish"),
    sqlite3.SQLITE_CANTOPEN: ("the file cannot be opened", "Check that its folder exists and may be written"),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", "Keep a copy of it, then `spar restore` the last backup"),
    sqlite3.SQLITE_NOTADB: ("the file is no database", "Name the right file, or `spar restore` the last backup"),
    sqlite3.SQLITE_PERM: ("access is denied", "Make the file and its folder writable"),
    sqlite3.SQLITE_NOMEM: ("there is no memory left", "Free some, or read in smaller parts"),
}
# Errors of the value that was given, whatever state the file is in.
_OF_VALUES = (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)

# Python raises the second for a message that quotes a damaged schema, and so is not UTF-8 itself.
ERRORS = (sqlite3.Error, UnicodeDecodeError)


def is_disk_failure(error: Exception) -> bool:
    """Whether the disk itself failed, after which no later success can be trusted."""
    return _primary_code(error) == sqlite3.SQLITE_IOERR


def _primary_code(error: Exception) -> int:
    """The result code without its extension; 0 for errors of the Python module's own."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def explain(error: Exception, where: str) -> StoreFailed:
    """The error as a sentence for the operator."""
    wrong, do = _SENTENCES.get(_primary_code(error), ("the database refused", "Report this with the text above"))
    kind = StoreRefused if _primary_code(error) in _OF_VALUES else StoreFailed
    return kind(f"{wrong} ({getattr(error, 'sqlite_errorname', '?')}: {error})", where=where, do=do)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turns what SQLite raises inside the block into StoreFailed."""
    try:
        yield
    except ERRORS as error:
        raise explain(error, where) from error


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; on disk when the block ends."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection whose commits are on disk when they return, and whose deletions leave no trace."""
    db = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    # A flipped bit may leave text that is not UTF-8; reading it must not fail: the row's seal shows the damage.
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        # No other statement may come first: page size and vacuum mode are fixed by a file's first write.
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _use_wal(db, busy_timeout_s)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA temp_store = MEMORY")  # a sort spilled to disk would leave pseudonyms in another file
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        db.close()
        raise
    return db


def _use_wal(db: sqlite3.Connection, busy_timeout_s: float) -> None:
    # Two processes that create one file at once may get BUSY here without SQLite waiting for them.
    deadline_s = time.monotonic() + busy_timeout_s
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)
