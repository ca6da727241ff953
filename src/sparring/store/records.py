"""What the rows of chunks say: records, complete seats, which rows a query wants, and the chunk itself. No I/O."""

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sparring.errors import WireError
from sparring.store.protocol import AppendResult, EpisodeRecord, Query, SeatRecord
from sparring.store.rows import Row, digest, mark, unsigned
from sparring.wire.chunk import Chunk, Key, decode_parts
from sparring.wire.ids import EpisodeId, GameId, PlayerId

log = logging.getLogger(__name__)


class SeatSteps(Protocol):
    """The columns that tell whether a seat is complete."""

    @property
    def first_step(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def ending(self) -> str: ...


def is_complete(rows: Sequence[SeatSteps]) -> bool:
    """Whether the rows of one seat, in the order of steps, reach from its first step to its end without a gap."""
    last = rows[-1]
    reached = last.first_step + last.steps
    return rows[0].first_step == 0 and last.ending != "running" and reached == sum(row.steps for row in rows)


def episode_record(rows: list[Row]) -> EpisodeRecord:
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
        seats=tuple(_seat_record(list(group)) for _, group in itertools.groupby(rows, key=lambda row: row.seat)),
    )


def _seat_record(rows: list[Row]) -> SeatRecord:
    last = rows[-1]
    player = None if last.player is None else PlayerId(last.player)
    steps, reward = sum(row.steps for row in rows), sum(row.reward for row in rows)
    complete = is_complete(rows)
    return SeatRecord(last.seat, last.actor, player, last.uploader, steps, reward, last.ending, last.outcome, complete)


def matcher(query: Query) -> Callable[[Any], bool]:
    """A test whether a row is in the query, apart from its game and completeness. A row has the columns of Row."""
    exact = {actor for actor in query.actors if not actor.endswith(":")}
    prefixes = tuple(actor for actor in query.actors if actor.endswith(":"))
    marks = {mark(query.game, player) for player in query.players}

    def matches(row: Any) -> bool:
        return (
            (not query.versions or row.version in query.versions)
            and (not query.sources or row.source in query.sources)
            and (not query.seats or row.seat in query.seats)
            and (not marks or row.mark in marks)
            and (not query.episodes or row.episode in query.episodes)
            and (not query.actors or row.actor in exact or row.actor.startswith(prefixes))
            and query.since_ms <= row.received_at_ms < query.until_ms
        )

    return matches


def erased_player(row: Row) -> AppendResult:
    """The verdict on a chunk of a player who was erased."""
    return AppendResult("gone", "this player was erased and nothing more is kept of them", "player", str(row.player))


class DamageLog(dict[Key, str]):
    """The damaged chunks that a store found while it read, and what is wrong with each; they are never served."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def decode(
        self, key: tuple[str, str, int, int], header: bytes | None, body: bytes | None, stored: bytes
    ) -> Chunk | None:
        """The chunk of a row; None, and one line in the log, where its bytes do not fit the hash `stored`."""
        try:
            if header is not None and body is not None and digest(header, body) == stored:
                return decode_parts(header, body)
            wrong = "its bytes changed since they were stored"
        except WireError as error:
            wrong = error.wrong
        found = Key(GameId(key[0]), EpisodeId(key[1]), key[2], key[3])
        if found not in self:
            log.error("%s: chunk %s is damaged and left out: %s", self._where, found, wrong)
        self[found] = wrong
        return None
