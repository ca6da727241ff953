"""Which chunk to draw next: a table of (id, steps) per query, kept up to date without reading a body."""

import sqlite3
import threading
from collections import OrderedDict

import numpy as np
from numpy.random import Generator

from sparring.store.protocol import Query
from sparring.store.sqlite.where import where
from sparring.wire.chunk import Array

TABLES = 4  # queries remembered; a trainer has one or two


class SampleTable:
    """The chunks of one query, up to the newest that was there when it was last brought up to date."""

    def __init__(self, removals: int) -> None:
        self.removals, self.newest = removals, 0
        self.ids: Array = np.zeros(0, np.int64)
        self.ends: Array = np.zeros(0, np.int64)  # running sum of steps

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, rows: list[tuple[int, int]]) -> None:
        """More chunks, as (id, steps)."""
        if not rows:
            return
        more = np.asarray(rows, np.int64)
        start = self.ends[-1] if len(self.ends) else 0
        self.ids = np.concatenate((self.ids, more[:, 0]))
        self.ends = np.concatenate((self.ends, start + np.cumsum(more[:, 1])))

    def draw(self, steps: int, rng: Generator) -> list[int]:
        """Ids of chunks that hold `steps` on average, each drawn as often as it has steps."""
        total = int(self.ends[-1])
        count = max(1, round(steps * len(self.ids) / total))
        picks: list[int] = self.ids[np.searchsorted(self.ends, rng.integers(0, total, count), side="right")].tolist()
        return picks


class SampleTables:
    """The tables of the last few queries."""

    def __init__(self) -> None:
        self._tables: OrderedDict[Query, SampleTable] = OrderedDict()
        self._lock = threading.Lock()

    def table(self, db: sqlite3.Connection, query: Query) -> SampleTable:
        """The table of `query`, with whatever was stored since; made anew after a removal."""
        with self._lock:
            (removals,) = db.execute("SELECT value FROM counters WHERE name = 'removals'").fetchone()
            table = self._tables.get(query)
            if table is None or table.removals != removals:
                table = self._tables[query] = SampleTable(removals)
            self._tables.move_to_end(query)
            while len(self._tables) > TABLES:
                self._tables.popitem(last=False)
            _catch_up(db, query, table)
            return table


def _catch_up(db: sqlite3.Connection, query: Query, table: SampleTable) -> None:
    (newest,) = db.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()
    if newest <= table.newest:
        return
    chosen = where(query)
    if query.complete and table.newest:
        # A new chunk may complete a seat whose other chunks are old; a complete seat takes no more, so none is twice.
        chosen = chosen.also(
            "(c.episode, c.seat) IN (SELECT n.episode, n.seat FROM chunks n WHERE n.id > ?)", table.newest
        )
    else:
        chosen = chosen.also("c.id > ?", table.newest)
    table.add(
        db.execute(
            f"SELECT c.id, c.steps FROM chunks c WHERE {chosen.sql} AND c.id <= ?", (*chosen.values, newest)
        ).fetchall()
    )
    table.newest = newest
