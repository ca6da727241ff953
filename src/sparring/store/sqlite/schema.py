"""The SQLite file: its tables, and what is checked and repaired before it is trusted.

`chunks` has one small row per chunk, all that finding and judging need; `bodies` has the bytes: a scan of a million
rows touches no body. `seal` is a hash of the row, `stored` of the bytes. `quarantine` and `minutes` are a sink's.
"""

import logging
import os
import sqlite3
from pathlib import Path

from sparring.durable import sync
from sparring.errors import StoreFailed, WireError
from sparring.store.rows import COLUMNS, Row, prepare
from sparring.store.sqlite.connection import connect, explained, transaction
from sparring.wire.chunk import Key, decode_parts
from sparring.wire.ids import EpisodeId, GameId

log = logging.getLogger(__name__)

APPLICATION_ID = 0x53504152  # "SPAR", so that another program's database is not taken for ours
VERSION = 2  # of the tables below; a file of another version is refused

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
    for table in ("chunks", "tombstones", "counters", "quarantine", "minutes"):
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
