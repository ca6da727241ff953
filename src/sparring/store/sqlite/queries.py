"""Queries as SQL: the WHERE clause that finds chunks, and pages of episode records."""

import sqlite3
from dataclasses import dataclass
from typing import Any

from sparring.store.protocol import EpisodeRecord, Query
from sparring.store.records import episode_record
from sparring.store.rows import COLUMNS, Row, mark

PAGE_EPISODES = 128

# A seat is complete when its chunks begin at 0, leave no gap (they never overlap) and one of them ends it.
COMPLETE = "min(first_step) = 0 AND sum(steps) = max(first_step + steps) AND max(ending <> 'running')"
_COMPLETE_SEAT = (
    f"(SELECT {COMPLETE} FROM chunks w WHERE w.game = c.game AND w.episode = c.episode AND w.seat = c.seat)"
)


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
    match = f"SELECT 1 FROM chunks c WHERE c.game = m.game AND c.episode = m.episode AND {chosen.sql}"
    later = "SELECT 1 FROM chunks l WHERE l.game = m.game AND l.episode = m.episode AND l.id > m.id"
    lasts = _lasts(db, query, after, f"NOT EXISTS ({later}) AND EXISTS ({match})", chosen.values)
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
        kept = [row for row in map(_sealed, rows) if row is not None and row.seat in wanted]
        if kept:
            records.append(episode_record(kept))
    return records, lasts[-1][0] if len(lasts) == PAGE_EPISODES else None


def _lasts(
    db: sqlite3.Connection, query: Query, after: int, test: str, values: tuple[Any, ...]
) -> list[tuple[int, str]]:
    few, more = "", tuple[Any, ...]()
    if query.episodes:
        few, more = f" AND m.episode IN ({question_marks(query.episodes)})", query.episodes
    elif query.players:  # their episodes by the index, rather than every episode asked whether it is theirs
        more = tuple(mark(query.game, player) for player in query.players)
        few = f" AND m.episode IN (SELECT p.episode FROM chunks p WHERE p.mark IN ({question_marks(more)}))"
    sql = f"SELECT m.id, m.episode FROM chunks m WHERE {'' if few else '+'}m.game = ? AND m.id > ?{few} AND {test}"
    return db.execute(f"{sql} ORDER BY m.id LIMIT {PAGE_EPISODES}", (query.game, after, *more, *values)).fetchall()


def _sealed(found: tuple[Any, ...]) -> Row | None:
    row = Row(*found[:-1])
    return row if row.seal() == found[-1] else None  # a damaged row makes its seat incomplete, never wrong
