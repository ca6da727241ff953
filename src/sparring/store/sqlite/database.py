"""The SQLite file: connections whose commits are durable, its tables, and what is checked and repaired on opening.

`chunks` has one small row per chunk, all that finding and judging need; `bodies` has the bytes: a scan of a million
rows touches no body. `seal` is a hash of the row, `stored` of the bytes. `quarantine` and `minutes` are a sink's.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparring.durable import sync
from sparring.errors import StoreFailed, StoreRefused, WireError
from sparring.store.rows import COLUMNS, Row, prepare
from sparring.wire.chunk import Key, decode_parts
from sparring.wire.ids import EpisodeId, GameId

log = logging.getLogger(__name__)

APPLICATION_ID = 0x53504152  # "SPAR", so that another program's database is not taken for ours
VERSION = 3  # of the tables below; a file of another version is refused

_TABLES = """
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of receipt; never used twice
    game TEXT NOT NULL, episode TEXT NOT NULL, seat INTEGER NOT NULL, first_step INTEGER NOT NULL,
    steps INTEGER NOT NULL, version TEXT NOT NULL, spec TEXT NOT NULL,
    player TEXT, mark INTEGER,             -- mark: a hash of (game, player), so that no index holds a pseudonym
    uploader TEXT NOT NULL, actor TEXT NOT NULL, source TEXT NOT NULL, sample_rate REAL NOT NULL,
    ending TEXT NOT NULL, outcome REAL, seed INTEGER,
    reward REAL NOT NULL,                  -- sum over the chunk's steps
    tick INTEGER NOT NULL,                 -- of its last step
    received_at_ms INTEGER NOT NULL,
    batch_id INTEGER NOT NULL,             -- of a sink, hashed; 0 for what came without one
    size_bytes INTEGER NOT NULL,           -- of header and body
    content BLOB NOT NULL,                 -- what the sender said, hashed: tells "had" from "conflict"
    stored BLOB NOT NULL,                  -- header and body as stored, hashed: tells a flipped bit
    seal BLOB NOT NULL                     -- all of the above, hashed
) STRICT;
CREATE UNIQUE INDEX chunks_by_key ON chunks (game, episode, seat, first_step);
CREATE INDEX chunks_by_mark ON chunks (mark) WHERE mark IS NOT NULL;
CREATE TABLE bodies (id INTEGER PRIMARY KEY, header BLOB NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE tombstones (game TEXT NOT NULL, mark INTEGER NOT NULL, erased_at_ms INTEGER NOT NULL,
    PRIMARY KEY (game, mark)) STRICT, WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO counters VALUES ('removals', 0), ('scrub', 0);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine (shard TEXT NOT NULL, position TEXT NOT NULL, game TEXT NOT NULL, verdict TEXT NOT NULL,
    reason TEXT NOT NULL, field TEXT NOT NULL, uploader TEXT NOT NULL, episode TEXT NOT NULL, seat INTEGER NOT NULL,
    first_step INTEGER NOT NULL, arrived_ms INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
    PRIMARY KEY (shard, position)) STRICT, WITHOUT ROWID;
CREATE INDEX quarantine_by_game ON quarantine (game, arrived_ms);
CREATE TABLE minutes (game TEXT NOT NULL, minute_ms INTEGER NOT NULL, batch TEXT NOT NULL, steps INTEGER NOT NULL,
    chunks INTEGER NOT NULL, players BLOB NOT NULL, ended INTEGER NOT NULL, returns REAL NOT NULL,
    lag_ms_sum INTEGER NOT NULL, lag_ms_max INTEGER NOT NULL,
    PRIMARY KEY (game, minute_ms, batch)) STRICT, WITHOUT ROWID;
"""

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


def primary_code(error: Exception) -> int:
    """The result code without its extension; 0 for errors of the Python module's own."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def explain(error: Exception, where: str) -> StoreFailed:
    """The error as a sentence for the operator."""
    wrong, do = _SENTENCES.get(primary_code(error), ("the database refused", "Report this with the text above"))
    kind = StoreRefused if primary_code(error) in _OF_VALUES else StoreFailed
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
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def open_file(path: Path, busy_timeout_s: float, *, check: bool = True) -> sqlite3.Connection:
    """The file, created where there is none, and checked; StoreFailed otherwise."""
    where = str(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # the log takes its rights from the file
    except OSError as error:
        raise StoreFailed(f"it cannot be opened: {error}", where=where, do="Make the folder writable") from None
    with explained(where):
        db = connect(path, busy_timeout_s)
    try:
        with explained(where):
            with transaction(db):  # which also makes the -wal file exist, before the folder is synced
                _create(db, where)
            if check:
                _check(db, where)
        if os.name == "posix":  # on Windows a folder cannot be opened, and the file system's log keeps names
            sync(path.parent)  # else a power cut may forget that the file or its log was made
    except BaseException:
        db.close()
        raise
    return db


def _create(db: sqlite3.Connection, where: str) -> None:
    """Make the tables in a new file; refuse another program's database and another version's tables."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (owner,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if owner != APPLICATION_ID and (owner or tables):
        raise StoreFailed("this database is another program's", where=where, do="Name another file in [store] url")
    if version not in (0, VERSION):
        do = "Use the Sparring that wrote it, or name another file in [store] url"
        raise StoreFailed(f"it has version {version}, this Sparring reads version {VERSION}", where=where, do=do)
    if version == 0:
        for statement in _TABLES.split(";\n"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _check(db: sqlite3.Connection, where: str) -> None:
    # quick_check walks every page but does not compare indexes with their tables; for the small tables
    # that is done too, since a damaged index would hide a chunk and let it be stored twice.
    found = [text for (text,) in db.execute("PRAGMA quick_check(3)")]
    for table in ("chunks", "tombstones", "counters", "facts", "quarantine", "minutes"):
        found += [text for (text,) in db.execute(f"PRAGMA integrity_check({table})")]
    damage = [text for text in found if text != "ok"]
    if damage:
        do = "Keep a copy of it, then `spar restore` the last backup"
        raise StoreFailed(f"the file is damaged: {'; '.join(damage[:3])}", where=where, do=do)


def repair(db: sqlite3.Connection, where: str) -> dict[Key, str]:
    """Check every row's seal and write a damaged row again from its chunk; the keys of those where that fails."""
    broken: dict[int, Row] = {}
    for row_id, *values, seal in db.execute(f"SELECT id, {COLUMNS}, seal FROM chunks"):
        row = Row(*values)
        if row.seal() != seal:
            broken[row_id] = row
    lost: dict[Key, str] = {}
    for row_id, row in broken.items():
        if _repaired(db, row_id, row):
            log.warning("%s: row %d was damaged and written again from its chunk", where, row_id)
        else:
            lost[Key(GameId(row.game), EpisodeId(row.episode), row.seat, row.first_step)] = "its row is damaged"
            log.error("%s: row %d is damaged and so is its chunk", where, row_id)
    return lost


def _repaired(db: sqlite3.Connection, row_id: int, row: Row) -> bool:
    found = db.execute("SELECT header, body FROM bodies WHERE id = ?", (row_id,)).fetchone()
    try:
        true = prepare(decode_parts(*found)).row if found else None
    except WireError:
        return False
    # One flipped bit spoils at most one of the two hashes; where neither fits, the chunk is not to be believed.
    if true is None or (true.content != row.content and true.stored != row.stored):
        return False
    columns = ", ".join(f"{name} = ?" for name in Row._fields)
    db.execute(f"UPDATE chunks SET {columns}, seal = ? WHERE id = ?", (*true, true.seal(), row_id))
    return True
