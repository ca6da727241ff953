"""The SQLite file: its tables, its versions, and what is checked before it is trusted.

`chunks` has one small row per chunk, all that finding and judging need; `bodies` has the bytes.
Kept apart, a scan of a million rows touches no body. `seal` covers the row, `stored` the bytes.
"""

import os
import sqlite3
import time
from pathlib import Path

from sparring.errors import StoreFailed
from sparring.store.sqlite.errors import explained, primary_code

APPLICATION_ID = 0x53504152  # "SPAR", so that another program's database is not taken for ours
PAGE_BYTES = 8192

_VERSION_1 = """
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
"""

# What a sink writes beside the chunks.
_VERSION_2 = """
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

MIGRATIONS = (_VERSION_1, _VERSION_2)  # entry i leads from version i to i + 1; a released entry is never edited


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection whose commits are on disk when they return, and whose deletions leave no trace."""
    db = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    db.text_factory = _text
    try:
        # No other statement may come first: page size and vacuum mode are fixed by a file's first write.
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _use_wal(db, busy_timeout_s)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA temp_store = MEMORY")  # a spilled sort would leave pseudonyms in another file
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        db.close()
        raise
    return db


def _text(raw: bytes) -> str:
    # A flipped bit may leave text that is no UTF-8; reading it must not fail, its seal tells.
    return raw.decode("utf-8", "replace")


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


def prepare(path: Path, busy_timeout_s: float, *, check: bool = True) -> sqlite3.Connection:
    """The file, made where there is none, checked, and brought to the newest version; StoreFailed otherwise."""
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
            _migrate(db, where)
            if check:
                _check(db, where)
        _sync_folder(path.parent)  # else a power cut may forget that the file or its log was made
    except BaseException:
        db.close()
        raise
    return db


def _migrate(db: sqlite3.Connection, where: str) -> None:
    db.execute("BEGIN IMMEDIATE")  # also makes the -wal file exist, which _sync_folder then keeps
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (owner,) = db.execute("PRAGMA application_id").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if owner != APPLICATION_ID and (owner or tables):
            raise StoreFailed("this database is another program's", where=where, do="Name another file in [store] url")
        if version > len(MIGRATIONS):
            wrong = f"it has version {version}, this Sparring reads up to {len(MIGRATIONS)}"
            raise StoreFailed(wrong, where=where, do="Use the Sparring that wrote it, or a newer one")
        for step in range(version, len(MIGRATIONS)):
            for statement in MIGRATIONS[step].split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {step + 1}")
        if version < len(MIGRATIONS):
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _check(db: sqlite3.Connection, where: str) -> None:
    # quick_check walks every page but does not compare indexes with their tables; for the small tables
    # that is done too, since a damaged index would hide a chunk and let it be stored twice.
    found = [text for (text,) in db.execute("PRAGMA quick_check(3)")]
    for table in ("chunks", "tombstones", "counters", "quarantine", "minutes"):
        found += [text for (text,) in db.execute(f"PRAGMA integrity_check({table})")]
    damage = [text for text in found if text != "ok"]
    if damage:
        raise StoreFailed(
            f"the file is damaged: {'; '.join(damage[:3])}",
            where=where,
            do="Keep a copy of it, then `spar restore` the last backup",
        )


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # elsewhere a folder cannot be opened, and names are kept by the file system's own log
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
