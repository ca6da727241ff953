"""Counts and sample tables of the SQLite file, brought up to date: a call costs the chunks stored since the last one.

Ids rise with each commit of any process and are never used twice: so "since" is an id.
"""

import sqlite3
import threading

from sparring.store.protocol import GameStats, Query
from sparring.store.sqlite.queries import COMPLETE, where
from sparring.store.summaries import TABLES, GameCounts, SampleTable
from sparring.wire.ids import GameId

_STATE = "SELECT (SELECT value FROM counters WHERE name = 'removals'), coalesce(max(id), 0) FROM chunks"
_SUMS = """SELECT source, version, count(*), sum(steps), sum(size_bytes), min(received_at_ms), max(received_at_ms)
    FROM chunks WHERE id > ? AND id <= ? AND +game = ? GROUP BY source, version"""
# Each episode with a new chunk: whether it was there before, and whether it is complete now.
_EPISODES = f"""SELECT episode, min(first) <= ?, min(complete) FROM (
        SELECT episode, min(id) AS first, {COMPLETE} AS complete FROM chunks
        WHERE game = ? AND episode IN (SELECT episode FROM chunks WHERE id > ? AND id <= ? AND +game = ?) AND id <= ?
        GROUP BY episode, seat)
    GROUP BY episode"""
_PLAYERS = """SELECT count(*) FROM (SELECT DISTINCT mark FROM chunks WHERE id > ? AND id <= ? AND +game = ?) new
    WHERE new.mark IS NOT NULL AND NOT EXISTS (SELECT 1 FROM chunks old WHERE old.mark = new.mark AND old.id <= ?)"""


class Summaries:
    """The counts of all games asked for and the tables of the last few queries, each with its newest chunk's id."""

    def __init__(self) -> None:
        self._counts: dict[GameId, tuple[GameCounts, int]] = {}
        self._tables: dict[Query, tuple[SampleTable, int]] = {}
        self._lock = threading.Lock()

    def stats(self, db: sqlite3.Connection, game: GameId) -> GameStats:
        """What is kept of one game now."""
        with self._lock:
            removals, newest = db.execute(_STATE).fetchone()
            counts, since = self._counts.pop(game, (GameCounts(removals), 0))
            if counts.removals != removals:
                counts, since = GameCounts(removals), 0
            if newest > since:
                _count(db, game, counts, since, newest)
            if counts.chunks:  # a name that has no chunks is not remembered
                self._counts[game] = counts, newest
            return counts.stats(game)

    def table(self, db: sqlite3.Connection, query: Query) -> SampleTable:
        """The table of `query`, with everything stored since the last call."""
        with self._lock:
            removals, newest = db.execute(_STATE).fetchone()
            table, since = self._tables.pop(query, (SampleTable(removals), 0))
            if table.removals != removals:
                table, since = SampleTable(removals), 0
            if newest > since:
                _extend(db, query, table, since, newest)
            self._tables[query] = table, newest
            while len(self._tables) > TABLES:
                del self._tables[next(iter(self._tables))]
            return table


def _count(db: sqlite3.Connection, game: GameId, counts: GameCounts, since: int, until: int) -> None:
    for sums in db.execute(_SUMS, (since, until, game)):
        counts.add(*sums)
    for episode, existed, complete in db.execute(_EPISODES, (since, game, since, until, game, until)):
        counts.episodes += not existed
        counts.note(episode, complete)
    counts.players += db.execute(_PLAYERS, (since, until, game, since)).fetchone()[0]


def _extend(db: sqlite3.Connection, query: Query, table: SampleTable, since: int, until: int) -> None:
    chosen = where(query)
    if query.complete and since:
        # A new chunk may complete a seat whose other chunks are old; a complete seat takes no more, so none is twice.
        chosen = chosen.also("(c.episode, c.seat) IN (SELECT n.episode, n.seat FROM chunks n WHERE n.id > ?)", since)
    else:
        chosen = chosen.also("c.id > ?", since)
    sql = f"SELECT c.id, c.steps FROM chunks c WHERE {chosen.sql} AND c.id <= ?"
    if rows := db.execute(sql, (*chosen.values, until)).fetchall():
        table.add(*zip(*rows, strict=True))
