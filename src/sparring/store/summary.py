"""Episodes and counts, summed up from the rows of their chunks; no body is read."""

import itertools
import sqlite3
from dataclasses import dataclass
from typing import Any

from sparring.store.protocol import EpisodeRecord, GameStats, Query, SeatRecord
from sparring.store.rows import COLUMNS, Row, unsigned
from sparring.store.selection import where
from sparring.wire.ids import EpisodeId, GameId, PlayerId

PAGE_EPISODES = 128


@dataclass(frozen=True, slots=True)
class EpisodePage:
    """Some episodes, and where the next page begins; None after the last."""

    records: list[EpisodeRecord]
    last: int | None


def episode_page(db: sqlite3.Connection, query: Query, after: int) -> EpisodePage:
    """Episodes whose last chunk has an id above `after`, in that order."""
    chosen = where(query)
    seats = f"SELECT DISTINCT c.seat FROM chunks c WHERE c.game = m.game AND c.episode = m.episode AND {chosen.sql}"
    last_of_episode = (
        "NOT EXISTS (SELECT 1 FROM chunks l WHERE l.game = m.game AND l.episode = m.episode AND l.id > m.id)"
    )
    lasts = _lasts(db, query, after, f"{last_of_episode} AND EXISTS ({seats})", chosen.values)
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
            records.append(_record(kept))
    return EpisodePage(records, lasts[-1][0] if len(lasts) == PAGE_EPISODES else None)


def _lasts(
    db: sqlite3.Connection, query: Query, after: int, test: str, values: tuple[Any, ...]
) -> list[tuple[int, str]]:
    few, more = "", query.episodes
    if query.episodes:
        few = f" AND m.episode IN ({', '.join('?' * len(query.episodes))})"
    sql = f"SELECT m.id, m.episode FROM chunks m WHERE {'' if few else '+'}m.game = ? AND m.id > ?{few} AND {test}"
    return db.execute(f"{sql} ORDER BY m.id LIMIT {PAGE_EPISODES}", (query.game, after, *more, *values)).fetchall()


def _sealed(found: tuple[Any, ...]) -> Row | None:
    row = Row(*found[:-1])
    return row if row.seal() == found[-1] else None  # a damaged row makes its seat incomplete, never wrong


def _record(rows: list[Row]) -> EpisodeRecord:
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


def stats(db: sqlite3.Connection, game: GameId) -> GameStats:
    """What is kept of one game."""
    groups = db.execute(
        """SELECT source, version, count(*), sum(steps), sum(size_bytes), min(received_at_ms), max(received_at_ms)
        FROM chunks WHERE game = ? GROUP BY source, version""",
        (game,),
    ).fetchall()
    if not groups:
        return GameStats(game)
    (players,) = db.execute("SELECT count(DISTINCT mark) FROM chunks WHERE game = ?", (game,)).fetchone()
    episodes, incomplete = db.execute(
        """SELECT count(*), sum(NOT whole) FROM (SELECT min(whole) AS whole FROM (
            SELECT episode, min(first_step) = 0 AND sum(steps) = max(first_step + steps)
            AND max(ending <> 'running') AS whole
            FROM chunks WHERE game = ? GROUP BY episode, seat) GROUP BY episode)""",
        (game,),
    ).fetchone()
    by_source: dict[str, int] = {}
    by_version: dict[str, int] = {}
    for source, version, _, steps, *_ in groups:
        by_source[source] = by_source.get(source, 0) + steps
        by_version[version] = by_version.get(version, 0) + steps
    return GameStats(
        game=game,
        chunks=sum(group[2] for group in groups),
        steps=sum(group[3] for group in groups),
        episodes=episodes,
        incomplete_episodes=incomplete,
        players=players,
        encoded_bytes=sum(group[4] for group in groups),
        first_received_ms=min(group[5] for group in groups),
        last_received_ms=max(group[6] for group in groups),
        steps_by_source=by_source,
        steps_by_version=by_version,
    )
