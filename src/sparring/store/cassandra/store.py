"""A keyspace as a Store: the parts of this package behind one object."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields
from typing import Any

from numpy.random import Generator

from sparring.store.cassandra import removal, schema
from sparring.store.cassandra.append import Appender
from sparring.store.cassandra.reader import Reader, Summaries, unpack_key
from sparring.store.cassandra.schema import DAY_MS, SELECT_CHUNKS, BucketLayout, Stored, stored
from sparring.store.cassandra.session import CassandraAddress, CassandraSession
from sparring.store.protocol import (
    NO_VIEWS,
    Appended,
    EpisodeRecord,
    Erased,
    GameStats,
    Minute,
    MinuteCount,
    Quarantined,
    Query,
    Store,
    Trimmed,
    Views,
)
from sparring.store.records import DamageLog, by_minute, draw_chunks, insert, minute_count, minute_row
from sparring.store.rows import mark
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId, PlayerId

LAYOUT_EVERY_S = 3_600.0
DRAWS_AT_ONCE = 32

LEDGER_PAGES = (256, 2_048)  # rows in the first page and in later ones

_QUARANTINED = [one.name for one in fields(Quarantined)]
_PUT_QUARANTINED = insert("quarantine", [*_QUARANTINED, "day"])
_GET_QUARANTINED = f"SELECT {', '.join(_QUARANTINED)} FROM quarantine WHERE game = ? AND day = ?"
_GET_COUNT = f"SELECT {', '.join(removal.COUNT_COLUMNS)} FROM minutes WHERE game = ? AND day = ? AND minute_ms >= ?"
_PUT_DAY = "INSERT INTO ledger_days (name, game, day) VALUES (?, ?, ?)"
_GET_DAYS = "SELECT day FROM ledger_days WHERE name = ? AND game = ?"
_ALL_DAYS = "SELECT game, day FROM ledger_days WHERE name = ?"
_TRIM = {
    "quarantine": "DELETE FROM quarantine WHERE game = ? AND day = ? AND arrived_ms < ?",
    "minutes": "DELETE FROM minutes WHERE game = ? AND day = ? AND minute_ms < ?",
}
_TRIM_DAY = "DELETE FROM ledger_days WHERE name = ? AND game = ? AND day = ?"
_ONE = f"{SELECT_CHUNKS} AND episode = ? AND seat = ? AND first_step = ?"


def open_url(url: str, **settings: Any) -> "CassandraStore":
    """The store of a URL such as cassandra://host,host/keyspace; its tables are made by `spar store migrate`."""
    return CassandraStore(CassandraAddress.read(url), **settings)


class CassandraStore(Store):
    """Chunks in a keyspace. See `Store` for what each verb promises."""

    def __init__(self, address: CassandraAddress, *, sole_writer: bool = False, check: bool = True) -> None:
        """`sole_writer`: no other process writes the same episodes while this one does (a sink, shard by shard);
        without it each episode's writers take turns by lightweight transactions. `check` is SQLite's, ignored here.
        """
        del check
        self.damaged = DamageLog(str(address))
        self.session = CassandraSession(address)
        try:
            schema.check(self.session)
            self._layout, self._layout_at_s = schema.layout_of(self.session), time.monotonic()
            removal.finish(self.session, self._layout)
        except BaseException:
            self.session.close()
            raise
        self._layout_lock = threading.Lock()
        self._appender = Appender(self.session, self.layout, sole=sole_writer)
        self._reader = Reader(self.session, self.layout)
        self._summaries = Summaries(self.session, self._reader)
        self._ledger_days: set[tuple[str, str, int]] = set()  # known to be in their table

    def layout(self) -> BucketLayout:
        """How many buckets each day has; looked up again now and then, since it may change for days to come."""
        with self._layout_lock:
            if time.monotonic() - self._layout_at_s > LAYOUT_EVERY_S:
                self._layout, self._layout_at_s = schema.layout_of(self.session), time.monotonic()
            return self._layout

    def append(self, chunks: Sequence[Chunk], batch: str = "") -> Appended:
        """On enough replicas when this returns; each chunk is judged alone."""
        self.session.check_open()
        try:
            return self._appender.append(chunks, batch)
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
            jobs = (self.session.scan(_ONE, (*at, *key)) for at, key in zip(partitions, named, strict=True))
            answers = zip(partitions, self.session.all(jobs, at_once=DRAWS_AT_ONCE), strict=True)
            return [self._decode(stored(at, rows[0])) if rows else None for at, rows in answers]

        return draw_chunks(self._summaries.table(query), steps, rng, fetch)

    def stats(self, game: GameId) -> GameStats:
        """Counts without any body; after the first call only what came since is looked at."""
        return self._summaries.counts(game).stats(game)

    def largest_partition(self, game: GameId) -> int:
        """Bytes of chunks in the fullest partition of a game."""
        return max(self._summaries.counts(game).by_partition.values(), default=0)

    def erase(self, game: GameId, player: PlayerId, views: Views = NO_VIEWS) -> Erased:
        """Remove the player's episodes from every table and refuse them from now on."""
        gone = removal.erase(self.session, self.layout(), game, mark(game, player), views)
        self._summaries.wrote()
        return gone

    def erased(self, game: GameId, player: PlayerId) -> bool:
        """Whether a tombstone stands for the player."""
        return bool(removal.erased(self.session, {(game, mark(game, player))}))

    def trim(self, *, before_ms: int = 0, max_bytes: int = 0) -> Trimmed:
        """Remove whole episodes, oldest first; also finishes what an interrupted erasure left, as opening does."""
        removal.finish(self.session, self.layout())
        if before_ms > 0:
            self._trim_ledger(before_ms)
        used = sum(self.stats(game).encoded_bytes for game in self.games()) if max_bytes > 0 else 0
        gone = removal.trim(self.session, before_ms=before_ms, excess_bytes=used - max_bytes)
        self._summaries.wrote()
        return gone

    def games(self) -> list[GameId]:
        """Every game that has chunks."""
        return removal.games(self.session)

    def quarantine(self, rows: Sequence[Quarantined]) -> None:
        """Keyed by shard and position: writing one again changes nothing."""
        self._put("quarantine", _PUT_QUARANTINED, [(row.game, row.arrived_ms, astuple(row)) for row in rows])

    def quarantined(self, game: GameId) -> Iterator[Quarantined]:
        """In the order of arrival."""
        for (day,) in self.session.one(self.session.scan(_GET_DAYS, ("quarantine", game))):
            rows = self.session.pages(self.session.scan(_GET_QUARANTINED, (game, day)), *LEDGER_PAGES)
            yield from (Quarantined(*row) for row in rows)

    def remember(self, name: str, value: str) -> str:
        """By a lightweight transaction: of several gateways that start at once one is first."""
        if (known := self.fact(name)) is None:
            self.session.one(
                self.session.once("INSERT INTO facts (name, value) VALUES (?, ?) IF NOT EXISTS", (name, value))
            )
        return known or self.fact(name) or value

    def fact(self, name: str) -> str | None:
        found = self.session.one(self.session.look("SELECT value FROM facts WHERE name = ?", (name,)))
        return str(found[0][0]) if found else None

    def count_minutes(self, rows: Sequence[MinuteCount]) -> None:
        """Keyed by game, minute and batch: writing one again changes nothing."""
        self._put("minutes", removal.PUT_COUNT, [(row.game, row.minute_ms, minute_row(row)) for row in rows])

    def minutes(self, game: GameId, since_ms: int) -> list[Minute]:
        """Summed over the batches, oldest first."""
        days = [day for (day,) in self.session.one(self.session.scan(_GET_DAYS, ("minutes", game)))]
        jobs = [self.session.scan(_GET_COUNT, (game, day, since_ms)) for day in days if (day + 1) * DAY_MS > since_ms]
        found = self.session.all(jobs, at_once=4)
        return by_minute(minute_count(row) for rows in found for row in rows)

    def close(self) -> None:
        """Close the connections."""
        if not self.session.closed:
            self.session.close()

    def _decode(self, found: Stored) -> Chunk | None:
        return self.damaged.decode(found.row[:4], found.header, found.body, found.row.stored)

    def _trim_ledger(self, before_ms: int) -> None:
        for name, cql in _TRIM.items():
            for game, day in self.session.one(self.session.look(_ALL_DAYS, (name,))):
                if day * DAY_MS < before_ms:
                    self.session.one(self.session.write(cql, (game, day, before_ms)))
                if (day + 2) * DAY_MS < before_ms:  # no writer comes back to that day
                    self.session.one(self.session.write(_TRIM_DAY, (name, game, day)))

    def _put(self, name: str, cql: str, rows: list[tuple[GameId, int, tuple[Any, ...]]]) -> None:
        days = {(name, str(game), at_ms // DAY_MS) for game, at_ms, _ in rows} - self._ledger_days
        self.session.all(self.session.write(_PUT_DAY, day) for day in sorted(days))
        self._ledger_days |= days
        self.session.all(self.session.write(cql, (*values, at_ms // DAY_MS)) for _, at_ms, values in rows)
