"""Episodes, summed up from the rows of their chunks; no body is read."""

import itertools
import sqlite3
from dataclasses import dataclass
from typing import Any

from sparring.store.protocol import EpisodeRecord, Query, SeatRecord
from sparring.store.rows import COLUMNS, Row, mark, unsigned
from sparring.store.sqlite.where import question_marks, where
from sparring.wire.ids import EpisodeId, GameId, PlayerId

PAGE_EPISODES = 128


@dataclass(frozen=True, slots=True)
class EpisodePage:
    """Some episodes, and where the next page begins; None after the last."""

    records: list[EpisodeRecord]
    last: int | None


def episode_page(db: sqlite3.Connection, query: Query, after: int) -> EpisodePage:
    """Episodes whose last chunk has an id above `after`, in that order."""
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
            records.append(record(kept))
    return EpisodePage(records, lasts[-1][0] if len(lasts) == PAGE_EPISODES else None)


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


def record(rows: list[Row]) -> EpisodeRecord:
    """One episode from the rows of its chunks, in the order of seat and step."""
    newest = max(rows, key=lambda row: row.received_at_ms)
    return EpisodeRecord(
        game=GameId(newest.game),
        version=newest.version,
        spec=newest.spec,
        episode=EpisodeId(newest.episode),
        seed=next((unsigned(row.seed) for row in rows if row.seed is not None), None),
        source=newest.source,  # type: ignore[arg-type]  # written from a Source
        sample_rate=newest.sample_rate,
        ticks=max(row.tick for row in rows),
        received_at_ms=newest.received_at_ms,
        seats=tuple(_seat(list(group)) for _, group in itertools.groupby(rows, key=lambda row: row.seat)),
    )


def _seat(rows: list[Row]) -> SeatRecord:
    last = rows[-1]
    steps = sum(row.steps for row in rows)
    return SeatRecord(
        seat=last.seat,
        actor=last.actor,
        player=None if last.player is None else PlayerId(last.player),
        uploader=last.uploader,
        steps=steps,
        reward=sum(row.reward for row in rows),
        ending=last.ending,
        outcome=last.outcome,
        complete=rows[0].first_step == 0 and last.ending != "running" and last.first_step + last.steps == steps,
    )
