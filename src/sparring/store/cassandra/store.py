"""A keyspace as a Store and a Ledger: the parts of this package behind one object."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.random import Generator

from sparring.store.cassandra import removal, schema
from sparring.store.cassandra.append import Appender
from sparring.store.cassandra.ledger import LedgerTables
from sparring.store.cassandra.partitions import SELECT_CHUNKS, BucketLayout, Stored, stored
from sparring.store.cassandra.reader import Reader
from sparring.store.cassandra.session import CassandraSession
from sparring.store.cassandra.summaries import Summaries, unpack_key
from sparring.store.cassandra.url import CassandraAddress
from sparring.store.protocol import (
    Appended,
    EpisodeRecord,
    Erased,
    GameStats,
    LedgerStore,
    Minute,
    MinuteCount,
    Quarantined,
    Query,
    Trimmed,
)
from sparring.store.records import DamageLog
from sparring.store.rows import mark
from sparring.store.summaries import draw_chunks
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId, PlayerId

LAYOUT_EVERY_S = 3_600.0
DRAWS_AT_ONCE = 32

_ONE = f"{SELECT_CHUNKS} AND episode = ? AND seat = ? AND first_step = ?"


def open_url(url: str, **settings: Any) -> "CassandraStore":
    """The store of a URL such as cassandra://host,host/keyspace; its tables are made by `spar store migrate`."""
    return CassandraStore(CassandraAddress.read(url), **settings)


class CassandraStore(LedgerStore):
    """Chunks in a keyspace. See `Store` and `Ledger` for what each verb promises."""

    def __init__(self, address: CassandraAddress, *, sole_writer: bool = False, check: bool = True) -> None:
        """`sole_writer`: no other process writes the same episodes while this one does (a sink, shard by shard);
        without it each episode's writers take turns by lightweight transactions. `check` is SQLite's, ignored here.
        """
        del check
        self.damaged = DamageLog(str(address))
        self._session = CassandraSession(address)
        try:
            schema.check(self._session)
            self._layout, self._layout_at_s = schema.layout_of(self._session), time.monotonic()
            removal.finish(self._session, self._layout)
        except BaseException:
            self._session.close()
            raise
        self._layout_lock = threading.Lock()
        self._appender = Appender(self._session, self.layout, sole=sole_writer)
        self._reader = Reader(self._session, self.layout)
        self._summaries = Summaries(self._session, self._reader)
        self._ledger = LedgerTables(self._session)

    @property
    def session(self) -> CassandraSession:
        """The connection, for `spar store describe`."""
        return self._session

    def layout(self) -> BucketLayout:
        """How many buckets each day has; looked up again now and then, since it may change for days to come."""
        with self._layout_lock:
            if time.monotonic() - self._layout_at_s > LAYOUT_EVERY_S:
                self._layout, self._layout_at_s = schema.layout_of(self._session), time.monotonic()
            return self._layout

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """On enough replicas when this returns; each chunk is judged alone."""
        self._session.check_open()
        try:
            return self._appender.append(chunks)
        finally:
            self._summaries.wrote()

    def episodes(self, query: Query) -> Iterator[EpisodeRecord]:
        """In the order of opening, and of receipt where they were opened within ten minutes."""
        return self._reader.records(query)

    def read(self, query: Query, *, part: int = 0, of: int = 1) -> Iterator[Chunk]:
        """In the order of opening, seat and step; a part is a range of tokens. Damaged chunks are left out."""
        decoded = map(self._decode, self._reader.chosen(query, part=part, of=of))
        return (chunk for chunk in decoded if chunk is not None)

    def sample(self, query: Query, steps: int, rng: Generator) -> list[Chunk]:
        """Every step in `query` is equally likely to be drawn, with the rest of its chunk."""
        layout = self.layout()

        def fetch(keys: list[bytes]) -> list[Chunk | None]:
            named = [unpack_key(key) for key in keys]
            partitions = [layout.partition(query.game, episode) for episode, *_ in named]
            jobs = (self._session.scan(_ONE, (*at, *key)) for at, key in zip(partitions, named, strict=True))
            answers = zip(partitions, self._session.all(jobs, at_once=DRAWS_AT_ONCE), strict=True)
            return [self._decode(stored(at, rows[0])) if rows else None for at, rows in answers]

        return draw_chunks(self._summaries.table(query), steps, rng, fetch)

    def stats(self, game: GameId) -> GameStats:
        """Counts without any body; after the first call only what came since is looked at."""
        return self._summaries.counts(game).stats(game)

    def largest_partition(self, game: GameId) -> int:
        """Bytes of chunks in the fullest partition of a game."""
        return max(self._summaries.counts(game).by_partition.values(), default=0)

    def erase(self, game: GameId, player: PlayerId) -> Erased:
        """Remove the player's rows from every table and refuse them from now on."""
        gone = removal.erase(self._session, self.layout(), game, mark(game, player))
        self._summaries.wrote()
        return gone

    def erased(self, game: GameId, player: PlayerId) -> bool:
        """Whether a tombstone stands for the player."""
        return bool(removal.erased(self._session, {(game, mark(game, player))}))

    def trim(self, *, before_ms: int = 0, max_bytes: int = 0) -> Trimmed:
        """Remove whole episodes, oldest first; also finishes what an interrupted erasure left, as opening does."""
        removal.finish(self._session, self.layout())
        if before_ms > 0:
            self._ledger.trim(before_ms)
        used = sum(self.stats(game).encoded_bytes for game in self.games()) if max_bytes > 0 else 0
        gone = removal.Trimmer(self._session).trim(before_ms=before_ms, excess_bytes=used - max_bytes)
        self._summaries.wrote()
        return gone

    def games(self) -> list[GameId]:
        """Every game that has chunks."""
        return removal.games(self._session)

    def quarantine(self, rows: Sequence[Quarantined]) -> None:
        """Keyed by shard and position: writing one again changes nothing."""
        self._ledger.quarantine(rows)

    def quarantined(self, game: GameId) -> Iterator[Quarantined]:
        """In the order of arrival."""
        return self._ledger.quarantined(game)

    def count_minutes(self, rows: Sequence[MinuteCount]) -> None:
        """Keyed by game, minute and batch: writing one again changes nothing."""
        self._ledger.count(rows)

    def minutes(self, game: GameId, since_ms: int) -> list[Minute]:
        """Summed over the batches, oldest first."""
        return self._ledger.minutes(game, since_ms)

    def close(self) -> None:
        """Close the connections."""
        if not self._session.closed:
            self._session.close()

    def _decode(self, found: Stored) -> Chunk | None:
        return self.damaged.decode(found.row[:4], found.header, found.body, found.row.stored)
