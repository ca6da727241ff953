"""What every store offers: chunks stored once, read again, erased on request, and what a sink writes beside them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

from numpy.random import Generator

from sparring.closable import Closable
from sparring.wire.chunk import Chunk, Source
from sparring.wire.ids import EpisodeId, GameId, PlayerId

Verdict = Literal["new", "had", "conflict", "forbidden", "gone", "taken"]  # taken: by a stream, on its way


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What became of one chunk. `reason` is a sentence for every verdict that is not a success."""

    verdict: Verdict
    reason: str = ""
    field: str = ""
    value: str = ""
    limit: str = ""
    batch_id: int = 0  # of a chunk that the store had: which one brought it (store/rows.py)


Appended = list[AppendResult]  # one for each chunk, in the order given


@dataclass(frozen=True, slots=True)
class Query:
    """Which chunks. An empty tuple means all; times are Unix milliseconds of receipt, until excluded."""

    game: GameId
    versions: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    actors: tuple[str, ...] = ()  # exact, or a prefix that ends in ":" such as "model:"
    players: tuple[PlayerId, ...] = ()
    episodes: tuple[EpisodeId, ...] = ()
    seats: tuple[int, ...] = ()
    since_ms: int = 0
    until_ms: int = 1 << 62
    complete: bool = False  # only seats recorded from their first step to their end without a gap


@dataclass(frozen=True, slots=True)
class SeatRecord:
    """What one seat did in one episode, from its chunks."""

    seat: int
    actor: str  # of its last chunk
    player: PlayerId | None
    uploader: str
    steps: int
    reward: float  # sum over all its steps
    ending: str
    outcome: float | None
    complete: bool


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode with the seats that were recorded."""

    game: GameId
    version: str
    spec: str
    episode: EpisodeId
    seed: int | None
    source: Source
    sample_rate: float
    ticks: int
    received_at_ms: int  # of its last chunk
    seats: tuple[SeatRecord, ...]

    @property
    def complete(self) -> bool:
        return all(seat.complete for seat in self.seats)


@dataclass(frozen=True, slots=True)
class GameStats:
    """Counts of what is kept for one game."""

    game: GameId
    chunks: int = 0
    steps: int = 0
    episodes: int = 0
    incomplete_episodes: int = 0
    players: int = 0
    encoded_bytes: int = 0
    first_received_ms: int | None = None
    last_received_ms: int | None = None
    steps_by_source: dict[str, int] = field(default_factory=dict)
    steps_by_version: dict[str, int] = field(default_factory=dict)


Views = Mapping[str, tuple[bool, ...]]  # by a game's version: whether each seat sees what other seats do


@dataclass(frozen=True, slots=True)
class Erased:
    """What is gone with a player, of all seats. The times say which models may have seen it."""

    chunks: int
    steps: int
    episodes: int
    first_received_ms: int | None
    last_received_ms: int | None


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What retention removed."""

    episodes: int
    chunks: int
    steps: int


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A chunk that came by stream and was not kept, and why. Its bytes stay in the stream until that forgets them."""

    game: GameId  # "" where the bytes did not say
    shard: str
    position: str  # with the shard: what the row is known by, so that a batch done again adds none
    verdict: str  # the store's, or "wire" and "chunk" for what no store was asked about
    reason: str
    field: str = ""
    uploader: str = ""
    episode: str = ""
    seat: int = 0
    first_step: int = 0
    arrived_ms: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """What one batch of a sink kept of one game and minute; the same batch again replaces it."""

    game: GameId
    minute_ms: int  # its first millisecond, by the time of receipt
    batch: str
    steps: int = 0
    chunks: int = 0
    players: tuple[int, ...] = ()  # marks (store/rows.py), so that reading can tell the same player in two batches
    ended: int = 0  # seats that came to their end
    returns: float = 0.0  # summed over those seats
    lag_ms_sum: int = 0  # from receipt to kept, over all chunks
    lag_ms_max: int = 0


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute of one game, over all batches."""

    minute_ms: int
    steps: int
    chunks: int
    players: int
    ended: int
    mean_return: float | None
    lag_ms: float  # mean
    lag_ms_max: int


NO_VIEWS: Views = MappingProxyType({})


class Store(Closable, Protocol):
    """A context manager, which every backend inherits. Safe to call from several threads."""

    def append(self, chunks: Sequence[Chunk], batch: str = "") -> Appended:
        """Keep the chunks; durable on return. Each is judged alone: a refused one leaves no trace. `batch` names the
        sink's batch that brings them: a chunk that the store had is answered with the number of the batch that did."""

    def episodes(self, query: Query) -> Iterator[EpisodeRecord]:
        """Newest last, by the receipt of their last chunk (Cassandra: within ten minutes of opening)."""

    def read(self, query: Query, *, part: int = 0, of: int = 1) -> Iterator[Chunk]:
        """Oldest first: SQLite in the order of receipt, Cassandra in the order in which the episodes were opened.

        Either way a seat's chunks come in the order of their steps where they arrived so. `of` readers with
        different `part` share them out by episode.
        """

    def sample(self, query: Query, steps: int, rng: Generator) -> list[Chunk]:
        """Chunks drawn with replacement, every step equally likely, until they hold at least `steps`; or none."""

    def stats(self, game: GameId) -> GameStats:
        """Counts, without reading any body."""

    def erase(self, game: GameId, player: PlayerId, views: Views = NO_VIEWS) -> Erased:
        """Remove that player's episodes, every seat of them, and refuse the player and those episodes from now on.

        Other seats show the player's moves in what they observe; one that does not, by `views`, stays. Repeating it
        is harmless. A chunk of the player that comes later is refused, and its episode is removed likewise.
        """

    def erased(self, game: GameId, player: PlayerId) -> bool:
        """Whether that player was erased, so that nothing more of them is stored."""

    def trim(self, *, before_ms: int = 0, max_bytes: int = 0) -> Trimmed:
        """Remove whole episodes, oldest first: all last received before `before_ms`, then down to `max_bytes`."""

    def games(self) -> list[GameId]:
        """Every game that has chunks, in order of name."""

    def quarantine(self, rows: Sequence[Quarantined]) -> None:
        """Keep them; durable on return. Repeating it is harmless."""

    def quarantined(self, game: GameId) -> Iterator[Quarantined]:
        """In the order of arrival; retention (`trim`) removes them by it."""

    def remember(self, name: str, value: str) -> str:
        """Keep a fact about the deployment, unless there is one of that name; the value that stands. Durable."""

    def fact(self, name: str) -> str | None:
        """What was remembered under that name."""

    def count_minutes(self, rows: Sequence[MinuteCount]) -> None:
        """Keep them; durable on return. Repeating it is harmless."""

    def minutes(self, game: GameId, since_ms: int) -> list[Minute]:
        """The minutes that began at `since_ms` or later and have a count, oldest first."""

    def close(self) -> None:
        """Finish what was begun and close the file or the connections."""
