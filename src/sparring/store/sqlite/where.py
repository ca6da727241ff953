"""A query as SQL: the WHERE clause that finds its chunks. No I/O."""

from dataclasses import dataclass
from typing import Any

from sparring.store.protocol import Query
from sparring.store.rows import mark

# A seat is whole when its chunks begin at 0, leave no gap (they never overlap) and one of them ends it.
WHOLE = """(SELECT min(w.first_step) = 0 AND sum(w.steps) = max(w.first_step + w.steps) AND max(w.ending <> 'running')
    FROM chunks w WHERE w.game = c.game AND w.episode = c.episode AND w.seat = c.seat)"""


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
    return found.also(WHOLE) if query.complete else found


def _among(found: Where, column: str, values: Any) -> Where:
    return found.also(f"{column} IN ({question_marks(values)})", *values)


def question_marks(values: Any) -> str:
    """One question mark for each."""
    return ", ".join("?" * len(values))
