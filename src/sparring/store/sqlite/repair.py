"""Rows whose seal does not fit: written anew from the chunk they describe, or named as damaged."""

import logging
import sqlite3

from sparring.errors import WireError
from sparring.store.rows import COLUMNS, Row, prepare
from sparring.wire.chunk import Key, decode_parts
from sparring.wire.ids import EpisodeId, GameId

log = logging.getLogger(__name__)


def repair(db: sqlite3.Connection, where: str) -> dict[Key, str]:
    """Check every row's seal, mend what can be; the rest by key. A row says nothing that its chunk does not."""
    broken: dict[int, Row] = {}
    for row_id, *values, seal in db.execute(f"SELECT id, {COLUMNS}, seal FROM chunks"):
        row = Row(*values)
        if row.seal() != seal:
            broken[row_id] = row
    lost: dict[Key, str] = {}
    for row_id, row in broken.items():
        if _repaired(db, row_id, row):
            log.warning("%s: row %d was damaged and written anew from its chunk", where, row_id)
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
