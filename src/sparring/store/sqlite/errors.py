"""What SQLite's complaints mean for the person who must act on them."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sparring.errors import StoreFailed, StoreRefused

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
# What is wrong with the value that was given, whatever state the file is in.
_OF_VALUES = (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)

# The second is Python's, for a complaint that quotes a damaged schema and so is no UTF-8 itself.
FAULTS = (sqlite3.Error, UnicodeDecodeError)


def is_disk_failure(error: Exception) -> bool:
    """Whether the disk itself gave up, after which no later success can be trusted."""
    return primary_code(error) == sqlite3.SQLITE_IOERR


def primary_code(error: Exception) -> int:
    """The result code without its extension; 0 for errors of the Python module's own."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def failed(error: Exception, where: str) -> StoreFailed:
    """The same fault as a sentence."""
    wrong, do = _SENTENCES.get(primary_code(error), ("the database refused", "Report this with the text above"))
    kind = StoreRefused if primary_code(error) in _OF_VALUES else StoreFailed
    return kind(f"{wrong} ({getattr(error, 'sqlite_errorname', '?')}: {error})", where=where, do=do)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turns whatever SQLite raises inside into a StoreFailed."""
    try:
        yield
    except FAULTS as error:
        raise failed(error, where) from error
