"""The embedded store: one SQLite file in WAL mode, a durable commit per append, short reads.

One connection writes, under a lock; a few others read. No read holds a transaction for longer than
a page of rows, so a slow reader never keeps the log from being emptied, and two processes (a gateway
that writes, a trainer that reads) share the file.
"""

import queue
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.random import Generator

from sparring.errors import ConfigError, StoreFailed
from sparring.store.protocol import (
    Appended,
    AppendResult,
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
from sparring.store.records import DamageLog, erased_player
from sparring.store.rows import COLUMNS, Neighbour, Prepared, Row, judge, mark, prepare
from sparring.store.sqlite import ledger, removal, schema
from sparring.store.sqlite.connection import ERRORS, connect, explain, explained, is_disk_failure, transaction
from sparring.store.sqlite.queries import episode_page, where
from sparring.store.sqlite.summaries import Summaries
from sparring.store.summaries import draw_chunks
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId, PlayerId

PAGE_CHUNKS = 64  # read at once
READERS = 8  # connections kept open for the next read

_INSERT = f"INSERT INTO chunks ({COLUMNS}, seal) VALUES ({', '.join('?' * (len(Row._fields) + 1))})"
_NEAR = "SELECT first_step, steps, ending, uploader, content FROM chunks WHERE game = ? AND episode = ? AND seat = ?"
_BEFORE = f"{_NEAR} AND first_step <= ? ORDER BY first_step DESC LIMIT 1"
_AFTER = f"{_NEAR} AND first_step > ? ORDER BY first_step LIMIT 1"
_AROUND = f"SELECT * FROM ({_BEFORE}) UNION ALL SELECT * FROM ({_AFTER})"  # at once: each call hands over the GIL
_WHOLE_CHUNK = """SELECT c.id, c.game, c.episode, c.seat, c.first_step, b.header, b.body, c.stored
    FROM chunks c JOIN bodies b ON b.id = c.id"""

# From each game straight to the next one in the index; DISTINCT would walk all of it.
_GAMES = """WITH RECURSIVE found(game) AS (SELECT min(game) FROM chunks UNION ALL
    SELECT (SELECT min(game) FROM chunks WHERE game > found.game) FROM found WHERE found.game IS NOT NULL)
    SELECT game FROM found WHERE game IS NOT NULL"""


def open_url(url: str, **settings: Any) -> "SqliteStore":
    """The store of a URL such as sqlite:///folder/experience.db; an absolute path makes it four slashes."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path:
        raise ConfigError(f"{url!r} names no file", where="[store] url", do="Write sqlite:///folder/experience.db")
    return SqliteStore(Path(path), **settings)


class SqliteStore(LedgerStore):
    """Chunks in one file. See `Store` for what each verb promises."""

    def __init__(
        self, path: Path, *, busy_timeout_s: float = 10.0, check: bool = True, sole_writer: bool = False
    ) -> None:
        """`check` walks the whole file first; leave it out only where another process just did.
        `sole_writer` is for stores that have several; a file has one at a time anyhow.
        """
        del sole_writer
        self.path, self._busy_timeout_s = path, busy_timeout_s
        self.damaged = DamageLog(str(path))
        self._writing = threading.Lock()
        self._closed = False
        self._broken: StoreFailed | None = None  # after a failed disk no later success could be trusted
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue(READERS)
        self._summaries = Summaries()
        self._db = schema.open_file(path, busy_timeout_s, check=check)
        try:
            with self.writing() as db:
                if check:
                    self.damaged.update(schema.repair(db, str(path)))
                removal.finish(db, str(path))
        except BaseException:
            self._db.close()
            raise

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """One transaction, synced before this returns; each chunk is judged alone."""
        ready = [prepare(chunk) for chunk in chunks]
        with self.writing() as db, transaction(db):
            gone = _erased(db, {(one.row.game, one.row.mark) for one in ready if one.row.mark is not None})
            return [_keep(db, one, gone) for one in ready]

    def episodes(self, query: Query) -> Iterator[EpisodeRecord]:
        """Newest last; with the seats that have a chunk in `query`, each summed up whole."""
        after: int | None = 0
        while after is not None:
            with self.reading() as db:
                records, after = episode_page(db, query, after)
            yield from records

    def read(self, query: Query, *, part: int = 0, of: int = 1) -> Iterator[Chunk]:
        """Chunks in the order of receipt, a page at a time; damaged ones are logged by key and left out."""
        chosen = where(query)
        if of > 1:
            chosen = chosen.also("part_of(c.episode, ?) = ?", of, part)
        sql = f"{_WHOLE_CHUNK} WHERE {chosen.sql} AND c.id > ? ORDER BY c.id LIMIT {PAGE_CHUNKS}"
        after = 0
        while True:
            with self.reading() as db:
                page = db.execute(sql, (*chosen.values, after)).fetchall()
            for found in page:
                if (chunk := self._decode(found)) is not None:
                    yield chunk
            if len(page) < PAGE_CHUNKS:
                return
            after = page[-1][0]

    def sample(self, query: Query, steps: int, rng: Generator) -> list[Chunk]:
        """Every step in `query` is equally likely to be drawn, with the rest of its chunk."""
        with self.reading() as db:

            def fetch(row_ids: list[int]) -> Iterator[Chunk | None]:
                for row_id in row_ids:
                    found = db.execute(f"{_WHOLE_CHUNK} WHERE c.id = ?", (row_id,)).fetchone()
                    yield None if found is None else self._decode(found)

            return draw_chunks(self._summaries.table(db, query), steps, rng, fetch)

    def stats(self, game: GameId) -> GameStats:
        """Counts from the rows alone; after the first call only what came since is looked at."""
        with self.reading() as db:
            return self._summaries.stats(db, game)

    def erase(self, game: GameId, player: PlayerId) -> Erased:
        """Remove the player's seats from every file and refuse them from now on."""
        with self.writing() as db:
            return removal.erase(db, self.path, game, player)

    def erased(self, game: GameId, player: PlayerId) -> bool:
        """Whether a tombstone stands for the player."""
        with self.reading() as db:
            return bool(_erased(db, {(game, mark(game, player))}))

    def trim(self, *, before_ms: int = 0, max_bytes: int = 0) -> Trimmed:
        """Remove whole episodes, oldest first: all received before `before_ms`, then down to `max_bytes`."""
        with self.writing() as db:
            removal.finish(db, str(self.path))
            if before_ms > 0:
                with transaction(db):
                    ledger.trim(db, before_ms)
            return removal.trim(db, before_ms=before_ms, max_bytes=max_bytes)

    def games(self) -> list[GameId]:
        """Every game that has chunks."""
        with self.reading() as db:
            return [GameId(game) for (game,) in db.execute(_GAMES)]

    def quarantine(self, rows: Sequence[Quarantined]) -> None:
        """One transaction, synced before this returns."""
        with self.writing() as db, transaction(db):
            ledger.quarantine(db, rows)

    def quarantined(self, game: GameId) -> Iterator[Quarantined]:
        """In the order of arrival, a page at a time."""
        after: Quarantined | None = None
        while True:
            with self.reading() as db:
                page = ledger.quarantine_page(db, game, after)
            yield from page
            if len(page) < ledger.PAGE_ROWS:
                return
            after = page[-1]

    def count_minutes(self, rows: Sequence[MinuteCount]) -> None:
        """One transaction, synced before this returns."""
        with self.writing() as db, transaction(db):
            ledger.count(db, rows)

    def minutes(self, game: GameId, since_ms: int) -> list[Minute]:
        """Summed over the batches, oldest first."""
        with self.reading() as db:
            return ledger.minutes(db, game, since_ms)

    def close(self) -> None:
        """Let go of the file; the last one out empties the log."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
            while not self._readers.empty():
                self._readers.get_nowait().close()
            self._db.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The one connection that writes, for as long as the block lasts."""
        with self._writing:
            if self._closed:
                raise StoreFailed("the store is closed", where=str(self.path), do="Open it again")
            if self._broken:
                raise self._broken
            try:
                yield self._db
            except ERRORS as error:
                said = explain(error, str(self.path))
                if is_disk_failure(error):
                    self._broken = said
                raise said from error

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to read from, given back at the end of the block."""
        if self._closed:
            raise StoreFailed("the store is closed", where=str(self.path), do="Open it again")
        with explained(str(self.path)):
            try:
                db = self._readers.get_nowait()
            except queue.Empty:
                db = connect(self.path, self._busy_timeout_s)
                db.create_function("part_of", 2, _part_of, deterministic=True)
            try:
                yield db
            finally:
                self._give_back(db)

    def _give_back(self, db: sqlite3.Connection) -> None:
        try:
            if self._closed:
                raise queue.Full
            self._readers.put_nowait(db)
        except queue.Full:
            db.close()

    def _decode(self, found: tuple[Any, ...]) -> Chunk | None:
        _, game, episode, seat, first_step, header, body, stored = found
        return self.damaged.decode((game, episode, seat, first_step), header, body, stored)


def _keep(db: sqlite3.Connection, one: Prepared, gone: set[tuple[str, int | None]]) -> AppendResult:
    row = one.row
    if (row.game, row.mark) in gone:
        return erased_player(row)
    place = (row.game, row.episode, row.seat, row.first_step)
    around = [Neighbour(*found) for found in db.execute(_AROUND, (*place, *place))]
    before = next((one for one in around if one.first_step <= row.first_step), None)
    after = next((one for one in around if one.first_step > row.first_step), None)
    kept = judge(row, before, after)
    if kept.verdict == "new":
        row_id = db.execute(_INSERT, (*row, row.seal())).lastrowid
        db.execute("INSERT INTO bodies VALUES (?, ?, ?)", (row_id, one.header, one.body))
    return kept


def _erased(db: sqlite3.Connection, players: set[tuple[str, int | None]]) -> set[tuple[str, int | None]]:
    return {
        one for one in players if db.execute("SELECT 1 FROM tombstones WHERE game = ? AND mark = ?", one).fetchone()
    }


def _part_of(episode: str, of: int) -> int:
    return zlib.crc32(episode.encode()) % of
