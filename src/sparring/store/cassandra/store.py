"""A keyspace as a Store and a Ledger: the parts of this package behind one object."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from numpy.random import Generator

from sparring.errors import WireError
from sparring.store.cassandra import erasure, migration, retention
from sparring.store.cassandra import url as address
from sparring.store.cassandra.append import Appender
from sparring.store.cassandra.counters import Counters
from sparring.store.cassandra.ledger import LedgerTables
from sparring.store.cassandra.partitions import BucketLayout
from sparring.store.cassandra.reader import BODY, HEADER, Found, Reader
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import (
    Appended,
    EpisodeRecord,
    Erased,
    GameStats,
    Minute,
    MinuteCount,
    Quarantined,
    Query,
    Trimmed,
)
from sparring.store.rows import COLUMNS, Row, digest, mark
from sparring.wire.chunk import Chunk, Key, decode_parts
from sparring.wire.ids import EpisodeId, GameId, PlayerId

log = logging.getLogger(__name__)

LAYOUT_EVERY_S = 3_600.0
DRAWS_AT_ONCE = 32

_ONE = f"""SELECT {COLUMNS}, arrived, header, body FROM chunks
    WHERE game = ? AND day = ? AND bucket = ? AND episode = ? AND seat = ? AND first_step = ?"""


def open_url(url: str, **settings: Any) -> "CassandraStore":
    """The store of a URL such as cassandra://host,host/keyspace; its tables are made by `spar store migrate`."""
    return CassandraStore(address.read(url), **settings)


class CassandraStore:
    """Chunks in a keyspace. See `Store` and `Ledger` for what each verb promises."""

    def __init__(self, at: address.CassandraAddress, *, sole_writer: bool = False, check: bool = True) -> None:
        """`sole_writer`: no other process writes the same episodes while this one does (a sink, shard by shard);
        without it each episode's writers take turns by lightweight transactions. `check` is SQLite's, ignored here.
        """
        del check
        self.damaged: dict[Key, str] = {}  # found while reading; such chunks are left out, never served
        self._session = CassandraSession(at)
        try:
            migration.check(self._session)
            self._layout, self._layout_at_s = migration.layout_of(self._session), time.monotonic()
            erasure.finish(self._session, self._layout)
        except BaseException:
            self._session.close()
            raise
        self._layout_lock = threading.Lock()
        self._appender = Appender(self._session, self.layout, sole=sole_writer)
        self._reader = Reader(self._session, self.layout)
        self._counters = Counters(self._session, self._reader)
        self._ledger = LedgerTables(self._session)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def session(self) -> CassandraSession:
        """The connection, for `spar store describe`."""
        return self._session

    def layout(self) -> BucketLayout:
        """How many buckets each day has; looked up again now and then, since it may change for days to come."""
        with self._layout_lock:
            if time.monotonic() - self._layout_at_s > LAYOUT_EVERY_S:
                self._layout, self._layout_at_s = migration.layout_of(self._session), time.monotonic()
            return self._layout

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """On enough replicas when this returns; each chunk is judged alone."""
        self._session.check_open()
        try:
            return self._appender.append(chunks)
        finally:
            self._counters.wrote()

    def episodes(self, query: Query) -> Iterator[EpisodeRecord]:
        """In the order of opening, and of receipt where they were opened within ten minutes."""
        return self._reader.records(query)

    def read(self, query: Query, *, part: int = 0, of: int = 1) -> Iterator[Chunk]:
        """In the order of opening, seat and step; a part is a range of tokens. Damaged chunks are left out."""
        for rows in self._reader.chosen(query, part=part, of=of, bodies=True):
            for row in rows:
                if (chunk := self._opened(row)) is not None:
                    yield chunk

    def sample(self, query: Query, steps: int, rng: Generator) -> list[Chunk]:
        """Every step in `query` is equally likely to be drawn, with the rest of its chunk."""
        drawn: list[Chunk] = []
        held, misses, layout = 0, 0, self.layout()
        table = self._counters.table(query)
        while held < steps and table.keys and misses < 1_000:
            keys = table.draw(steps - held, rng)
            jobs = (self._session.scan(_ONE, (*layout.partition(query.game, key[0]), *key)) for key in keys)
            for found in self._session.all(jobs, at_once=DRAWS_AT_ONCE):
                chunk = self._opened(found[0]) if found else None
                if chunk is None:  # damaged, or erased a moment ago: draw again
                    misses += 1
                elif held < steps:
                    drawn.append(chunk)
                    held += chunk.header.steps
        return drawn

    def stats(self, game: GameId) -> GameStats:
        """Counts without any body; after the first call only what came since is looked at."""
        return self._counters.tally(game).stats(game)

    def largest_partition(self, game: GameId) -> int:
        """Bytes of chunks in the fullest partition of a game."""
        return max(self._counters.tally(game).by_partition.values(), default=0)

    def erase(self, game: GameId, player: PlayerId) -> Erased:
        """Remove the player's rows from every table and refuse them from now on."""
        gone = erasure.erase(self._session, self.layout(), game, mark(game, player))
        self._counters.wrote()
        return gone

    def erased(self, game: GameId, player: PlayerId) -> bool:
        """Whether a tombstone stands for the player."""
        return bool(erasure.erased(self._session, {(game, mark(game, player))}))

    def trim(self, *, before_ms: int = 0, max_bytes: int = 0) -> Trimmed:
        """Remove whole episodes, oldest first; also finishes what an interrupted erasure left, as opening does."""
        erasure.finish(self._session, self.layout())
        if before_ms > 0:
            self._ledger.trim(before_ms)
        used = sum(self.stats(game).encoded_bytes for game in self.games()) if max_bytes > 0 else 0
        gone = retention.Trimmer(self._session).trim(before_ms=before_ms, excess_bytes=used - max_bytes)
        self._counters.wrote()
        return gone

    def games(self) -> list[GameId]:
        """Every game that has chunks."""
        return retention.games(self._session)

    def quarantine(self, rows: Sequence[Quarantined]) -> None:
        """EpisodeState by shard and position: writing one again changes nothing."""
        self._ledger.quarantine(rows)

    def quarantined(self, game: GameId) -> Iterator[Quarantined]:
        """In the order of arrival."""
        return self._ledger.quarantined(game)

    def count_minutes(self, rows: Sequence[MinuteCount]) -> None:
        """EpisodeState by game, minute and batch: writing one again changes nothing."""
        self._ledger.count(rows)

    def minutes(self, game: GameId, since_ms: int) -> list[Minute]:
        """Summed over the batches, oldest first."""
        return self._ledger.minutes(game, since_ms)

    def close(self) -> None:
        """Let go of the connections."""
        if not self._session.closed:
            self._session.close()

    def _opened(self, found: Found) -> Chunk | None:
        header, body, row = found[HEADER], found[BODY], Row(*found[: len(Row._fields)])
        try:
            if header is not None and body is not None and digest(header, body) == row.stored:
                return decode_parts(header, body)
            wrong = "its bytes changed since they were stored"
        except WireError as error:
            wrong = error.wrong
        key = Key(GameId(row.game), EpisodeId(row.episode), row.seat, row.first_step)
        if key not in self.damaged:
            log.error("%s: chunk %s is damaged and left out: %s", self._session.where, key, wrong)
        self.damaged[key] = wrong
        return None
