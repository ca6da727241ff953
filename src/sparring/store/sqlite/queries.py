"""Queries as SQL: the WHERE clause that finds chunks, pages of episode records, counts and sample tables.

Counts and tables are brought up to date: a call costs the chunks stored since the last one. Ids rise with each commit
of any process and are never used twice: so "since" is an id.
"""

import sqlite3
import threading
from dataclasses import dataclass
from typing import Any

from sparring.store.protocol import EpisodeRecord, GameStats, Query
from sparring.store.records import TABLES, GameCounts, SampleTable, episode_record
from sparring.store.rows import COLUMNS, Row, mark
from sparring.wire.ids import GameId

PAGE_EPISODES, PAGE_NAMED = 128, 4_096

# A seat is complete when its chunks begin at 0, leave no gap (they never overlap) and one of them ends it.
COMPLETE = "min(first_step) = 0 AND sum(steps) = max(first_step + steps) AND max(ending <> 'running')"
_COMPLETE_SEAT = (
    f"(SELECT {COMPLETE} FROM chunks w WHERE w.game = c.game AND w.episode = c.episode AND w.seat = c.seat)"
)
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


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on `chunks c`, with the values of its question marks."""

    sql: str
    values: tuple[Any, ...]

    def also(self, sql: str, *values: Any) -> "Where":
        """Both conditions."""
        return Where(f"{self.sql} AND {sql}", (*self.values, *values))


def where(query: Query, *, by_key: bool = False) -> Where:
    """The condition for `query`. Rows are scanned by id, in the order of receipt, unless an index finds few;
    `by_key` keeps it to the index by key, for a clause that has named the episode already.
    """
    # A unary plus keeps the planner off an index: the one by key would find the whole game and then sort it.
    by_player = bool(query.players) and not by_key
    by_episode = bool(query.episodes) and not by_key and not by_player
    found = Where(f"{'' if by_episode else '+'}c.game = ?", (query.game,))
    if query.players:
        found = _among(found, f"{'' if by_player else '+'}c.mark", [mark(query.game, one) for one in query.players])
        found = _among(found, "+c.player", query.players)
    if query.episodes:
        found = _among(found, f"{'' if by_episode else '+'}c.episode", query.episodes)
    for column, wanted in (("c.version", query.versions), ("c.source", query.sources), ("c.seat", query.seats)):
        if wanted:
            found = _among(found, f"+{column}", wanted)
    if query.actors:
        tests = ["substr(c.actor, 1, ?) = ?" if actor.endswith(":") else "c.actor = ?" for actor in query.actors]
        values = [v for actor in query.actors for v in ((len(actor), actor) if actor.endswith(":") else (actor,))]
        found = found.also(f"({' OR '.join(tests)})", *values)
    if query.since_ms > 0:
        found = found.also("c.received_at_ms >= ?", query.since_ms)
    if query.until_ms < 1 << 62:
        found = found.also("c.received_at_ms < ?", query.until_ms)
    return found.also(_COMPLETE_SEAT) if query.complete else found


def _among(found: Where, column: str, values: Any) -> Where:
    return found.also(f"{column} IN ({question_marks(values)})", *values)


def question_marks(values: Any) -> str:
    """One question mark for each."""
    return ", ".join("?" * len(values))


def episode_page(db: sqlite3.Connection, query: Query, after: int) -> tuple[list[EpisodeRecord], int | None]:
    """Episodes whose last chunk has an id above `after`, in that order; and where the next page begins, or None."""
    chosen = where(query, by_key=True)
    named = bool(query.episodes or query.players)
    lasts = _lasts_named(db, query, after) if named else _lasts(db, query, after, chosen)
    records = []
    for _, episode in lasts:
        wanted = {
            seat
            for (seat,) in db.execute(
                f"SELECT DISTINCT c.seat FROM chunks c WHERE c.game = ? AND c.episode = ? AND {chosen.sql}",
                (query.game, episode, *chosen.values),
            )
        }
        rows = db.execute(
            f"SELECT {COLUMNS}, seal FROM chunks WHERE game = ? AND episode = ? ORDER BY seat, first_step",
            (query.game, episode),
        )
        record = episode_record(row for row in map(_sealed, rows) if row is not None and row.seat in wanted)
        if record is not None:
            records.append(record)
    return records, lasts[-1][0] if len(lasts) == (PAGE_NAMED if named else PAGE_EPISODES) else None


def _lasts(db: sqlite3.Connection, query: Query, after: int, chosen: Where) -> list[tuple[int, str]]:
    match = f"SELECT 1 FROM chunks c WHERE c.game = m.game AND c.episode = m.episode AND {chosen.sql}"
    later = "SELECT 1 FROM chunks l WHERE l.game = m.game AND l.episode = m.episode AND l.id > m.id"
    sql = f"""SELECT m.id, m.episode FROM chunks m WHERE +m.game = ? AND m.id > ? AND NOT EXISTS ({later})
        AND EXISTS ({match}) ORDER BY m.id LIMIT {PAGE_EPISODES}"""
    return db.execute(sql, (query.game, after, *chosen.values)).fetchall()


def _lasts_named(db: sqlite3.Connection, query: Query, after: int) -> list[tuple[int, str]]:
    """The same where the query names episodes or players: an index finds theirs, rather than every episode being asked.
    Each page groups all of them, so it is a large one."""
    chosen = where(query)
    sql = f"""SELECT max(m.id) AS last, m.episode FROM chunks m
        WHERE m.game = ? AND m.episode IN (SELECT c.episode FROM chunks c WHERE {chosen.sql})
        GROUP BY m.episode HAVING last > ? ORDER BY last LIMIT {PAGE_NAMED}"""
    return db.execute(sql, (query.game, *chosen.values, after)).fetchall()


def _sealed(found: tuple[Any, ...]) -> Row | None:
    row = Row(*found[:-1])
    return row if row.seal() == found[-1] else None  # a damaged row makes its seat incomplete, never wrong


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
