"""What the rows of chunks say: records, complete seats, which rows a query wants, the chunk itself; counts of one game,
sample tables of one query, and a sink's counts by the minute. No I/O.

To counts and tables a backend adds what was stored since its last look; after a removal (erasure, retention) it starts
from nothing.
"""

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.errors import WireError
from sparring.store.protocol import AppendResult, EpisodeRecord, GameStats, Minute, MinuteCount, Query, SeatRecord
from sparring.store.rows import Row, batch_number, digest, mark, unsigned
from sparring.wire.chunk import Array, Chunk, Key, decode_parts
from sparring.wire.ids import EpisodeId, GameId, PlayerId

log = logging.getLogger(__name__)

TABLES = 4  # queries remembered; a trainer has one or two
MOST_MISSES = 1_000  # chunks in one sample that were damaged or erased a moment ago
MINUTE_COLUMNS = [one.name for one in fields(MinuteCount)]
MINUTE_MS = 60_000

_PLAYERS = MINUTE_COLUMNS.index("players")


def insert(table: str, columns: Sequence[str], verb: str = "INSERT") -> str:
    """The statement that writes a row with those columns."""
    return f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def is_complete(rows: Sequence[Any]) -> bool:
    """Whether the rows of one seat, in the order of steps, reach from its first step to its end without a gap."""
    last = rows[-1]
    whole: bool = last.first_step + last.steps == sum(row.steps for row in rows)
    return whole and rows[0].first_step == 0 and last.ending != "running"


def episode_record(rows: Iterable[Row]) -> EpisodeRecord | None:
    """One episode from the rows of its chunks, in the order of seat and step; None where there is no row. One row is
    held at a time: a sender may cut an episode into a million chunks."""
    newest: Row | None = None
    seed, ticks = None, 0
    seats: dict[int, SeatRecord] = {}
    for row in rows:
        newest = row if newest is None or row.received_at_ms > newest.received_at_ms else newest
        seed = unsigned(row.seed) if seed is None and row.seed is not None else seed
        ticks = max(ticks, row.tick)
        seats[row.seat] = _with_row(seats.get(row.seat), row)
    if newest is None:
        return None
    return EpisodeRecord(
        game=GameId(newest.game),
        version=newest.version,
        spec=newest.spec,
        episode=EpisodeId(newest.episode),
        seed=seed,
        source=newest.source,  # type: ignore[arg-type]  # written from a Source
        sample_rate=newest.sample_rate,
        ticks=ticks,
        received_at_ms=newest.received_at_ms,
        seats=tuple(seats.values()),
    )


def _with_row(before: SeatRecord | None, row: Row) -> SeatRecord:
    """The seat's record after its next row."""
    steps, reward = (0, 0.0) if before is None else (before.steps, before.reward)
    player = None if row.player is None else PlayerId(row.player)
    # As `is_complete`: chunks never overlap, so that as many steps as there are up to the end leave no gap.
    complete = row.first_step == steps and row.ending != "running"
    steps, reward = steps + row.steps, reward + row.reward
    return SeatRecord(row.seat, row.actor, player, row.uploader, steps, reward, row.ending, row.outcome, complete)


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


def erased_verdict(*, of_player: bool) -> AppendResult:
    """The verdict on a chunk of a player who was erased, or of an episode that was erased with its player."""
    if of_player:
        return AppendResult("gone", "this player was erased and nothing more is kept of them", "player")
    return AppendResult("gone", "a player of this episode was erased and nothing more is kept of it", "episode")


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


@dataclass(slots=True)
class GameCounts:
    """What is counted of one game, since the removal number `removals`."""

    removals: int
    chunks: int = 0
    size_bytes: int = 0
    episodes: int = 0
    players: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    incomplete: set[str] = field(default_factory=set)
    by_source: Counter[str] = field(default_factory=Counter)
    by_version: Counter[str] = field(default_factory=Counter)

    def add(
        self, source: str, version: str, chunks: int, steps: int, size_bytes: int, first_ms: int, last_ms: int
    ) -> None:
        """More chunks of one source and version, received from `first_ms` to `last_ms`."""
        self.chunks += chunks
        self.size_bytes += size_bytes
        self.by_source[source] += steps
        self.by_version[version] += steps
        self.first_ms = first_ms if self.first_ms is None else min(first_ms, self.first_ms)
        self.last_ms = last_ms if self.last_ms is None else max(last_ms, self.last_ms)

    def note(self, episode: str, complete: bool) -> None:
        """Whether an episode with new chunks is complete now."""
        (self.incomplete.discard if complete else self.incomplete.add)(episode)

    def stats(self, game: GameId) -> GameStats:
        """The counts as a record."""
        return GameStats(
            game=game,
            chunks=self.chunks,
            steps=self.by_source.total(),
            episodes=self.episodes,
            incomplete_episodes=len(self.incomplete),
            players=self.players,
            encoded_bytes=self.size_bytes,
            first_received_ms=self.first_ms,
            last_received_ms=self.last_ms,
            steps_by_source=dict(self.by_source),
            steps_by_version=dict(self.by_version),
        )


class SampleTable:
    """The chunks of one query: a key of the backend's for each, and the running sum of their steps."""

    def __init__(self, removals: int, key_type: str = "int64") -> None:
        self.removals = removals
        self.keys: Array = np.zeros(0, key_type)
        self.ends: Array = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: Iterable[Any], steps: Iterable[int]) -> None:
        """More chunks, and the steps of each."""
        start = self.ends[-1] if len(self.ends) else 0
        self.keys = np.concatenate((self.keys, np.array(list(keys), self.keys.dtype)))
        self.ends = np.concatenate((self.ends, start + np.cumsum(np.array(list(steps), np.int64))))

    def draw(self, steps: int, rng: Generator) -> list[Any]:
        """Keys of chunks that hold `steps` on average, each drawn as often as it has steps."""
        total = int(self.ends[-1])
        count = max(1, round(steps * len(self.keys) / total))
        picks: list[Any] = self.keys[np.searchsorted(self.ends, rng.integers(0, total, count), side="right")].tolist()
        return picks


def draw_chunks(
    table: SampleTable, steps: int, rng: Generator, fetch: Callable[[list[Any]], Iterable[Chunk | None]]
) -> list[Chunk]:
    """Chunks of the table until they hold `steps`. `fetch` gives None for one that is damaged, or erased meanwhile."""
    drawn: list[Chunk] = []
    held = misses = 0
    while held < steps and len(table) and misses < MOST_MISSES:
        for chunk in fetch(table.draw(steps - held, rng)):
            if chunk is None:
                misses += 1
                continue
            drawn.append(chunk)
            held += chunk.header.steps
            if held >= steps:
                break
    return drawn


def minute_row(count: MinuteCount) -> tuple[Any, ...]:
    """Its columns; the marks of players as 8 little-endian bytes each."""
    values = list(astuple(count))
    values[_PLAYERS] = b"".join(mark.to_bytes(8, "little", signed=True) for mark in count.players)
    return tuple(values)


def minute_count(row: Sequence[Any]) -> MinuteCount:
    """The count of a row."""
    values, data = list(row), row[_PLAYERS]
    values[_PLAYERS] = tuple(int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8))
    return MinuteCount(*values)


def merged_minutes(counts: Iterable[MinuteCount]) -> list[MinuteCount]:
    """One count for each game and minute, in that order, under the batch of its first; a player counts once."""
    ordered = sorted(counts, key=_game_and_minute)
    return [_sum_of_minute(list(group)) for _, group in itertools.groupby(ordered, key=_game_and_minute)]


def by_minute(counts: Iterable[MinuteCount]) -> list[Minute]:
    """One record for each minute of one game, over all batches."""
    return [
        Minute(
            minute_ms=one.minute_ms,
            steps=one.steps,
            chunks=one.chunks,
            players=len(one.players),
            ended=one.ended,
            mean_return=one.returns / one.ended if one.ended else None,
            lag_ms=one.lag_ms_sum / one.chunks if one.chunks else 0.0,
            lag_ms_max=one.lag_ms_max,
        )
        for one in merged_minutes(counts)
    ]


def minutes_without(
    counts: Iterable[MinuteCount], gone: Sequence[Row], player: int
) -> Iterable[tuple[MinuteCount, MinuteCount]]:
    """The counts in which rows of `gone` are, each as it is and as it is without them and the player of that mark.

    A chunk's own lag is not known: its count's mean stays.
    """
    rewards, placed = defaultdict[tuple[str, int], float](float), defaultdict[tuple[int, int], list[Row]](list)
    for row in gone:
        rewards[row.episode, row.seat] += row.reward
        placed[row.received_at_ms // MINUTE_MS * MINUTE_MS, row.batch_id].append(row)
    for one in counts:
        if not (rows := placed.get((one.minute_ms, batch_number(one.batch)))):
            continue
        ended, chunks = [row for row in rows if row.ending != "running"], max(0, one.chunks - len(rows))
        left = replace(
            one,
            steps=max(0, one.steps - sum(row.steps for row in rows)),
            chunks=chunks,
            players=tuple(mark for mark in one.players if mark != player),
            ended=max(0, one.ended - len(ended)),
            returns=one.returns - sum(rewards[row.episode, row.seat] for row in ended),
            lag_ms_sum=one.lag_ms_sum * chunks // max(1, one.chunks),
        )
        yield one, left


def _game_and_minute(count: MinuteCount) -> tuple[str, int]:
    return count.game, count.minute_ms


def _sum_of_minute(counts: list[MinuteCount]) -> MinuteCount:
    return MinuteCount(
        game=counts[0].game,
        minute_ms=counts[0].minute_ms,
        batch=counts[0].batch,
        steps=sum(one.steps for one in counts),
        chunks=sum(one.chunks for one in counts),
        players=tuple(sorted({mark for one in counts for mark in one.players})),
        ended=sum(one.ended for one in counts),
        returns=sum(one.returns for one in counts),
        lag_ms_sum=sum(one.lag_ms_sum for one in counts),
        lag_ms_max=max(one.lag_ms_max for one in counts),
    )
