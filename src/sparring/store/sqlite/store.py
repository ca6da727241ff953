"""The embedded store: one SQLite file in WAL mode, a durable commit per append, short reads.

One connection writes, under a lock; a few others read. No read holds a transaction for longer than
a page of rows, so a slow reader never keeps the log from being emptied, and two processes (a gateway
that writes, a trainer that reads) share the file.
"""

import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from numpy.random import Generator

from sparring.errors import ConfigError, StoreFailed
from sparring.store.protocol import (
    NO_VIEWS,
    Appended,
    AppendResult,
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
from sparring.store.records import (
    MINUTE_COLUMNS,
    DamageLog,
    by_minute,
    draw_chunks,
    erased_verdict,
    insert,
    minute_count,
    minute_row,
)
from sparring.store.rows import Neighbour, Prepared, Row, judge, late_rows, mark, prepare, tombstone_marks
from sparring.store.sqlite import database, removal
from sparring.store.sqlite.database import ERRORS, connect, explain, explained, primary_code, transaction
from sparring.store.sqlite.queries import Summaries, episode_page, where
from sparring.wire.chunk import Chunk
from sparring.wire.ids import EpisodeId, GameId, PlayerId

PAGE_CHUNKS, PAGE_BYTES = 64, 4 << 20  # read at once, encoded
READERS = 8  # connections kept open for the next read

_QUARANTINED = [one.name for one in fields(Quarantined)]
_INSERT = insert("chunks", (*Row._fields, "seal"))
_PUT_QUARANTINED = insert("quarantine", _QUARANTINED, "INSERT OR REPLACE")
_PUT_COUNT = insert("minutes", MINUTE_COLUMNS, "INSERT OR REPLACE")
_GET_QUARANTINED = f"""SELECT {", ".join(_QUARANTINED)} FROM quarantine WHERE game = ?
    ORDER BY arrived_ms, shard, position"""
_GET_COUNT = f"SELECT {', '.join(MINUTE_COLUMNS)} FROM minutes WHERE game = ? AND minute_ms >= ? ORDER BY minute_ms"
_NEAR = f"SELECT {', '.join(Neighbour._fields)} FROM chunks WHERE game = ? AND episode = ? AND seat = ?"
_OF_ANOTHER = "SELECT 1 FROM chunks WHERE game = ? AND episode = ? AND seat = ? AND uploader <> ? LIMIT 1"
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


class SqliteStore(Store):
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
        self._readers: list[sqlite3.Connection] = []
        self._summaries = Summaries()
        self._db = database.open_file(path, busy_timeout_s, check=check)
        try:
            with self.writing() as db:
                if check:
                    self.damaged.update(database.repair(db, str(path)))
                removal.finish(db, str(path))
        except BaseException:
            self._db.close()
            raise

    def append(self, chunks: Sequence[Chunk], batch: str = "") -> Appended:
        """One transaction, synced before this returns; each chunk is judged alone."""
        ready = [prepare(chunk, batch) for chunk in chunks]
        with self.writing() as db, transaction(db):
            gone = _erased(db, {(one.row.game, sign) for one in ready for sign in tombstone_marks(one.row)})
            _erase_late(db, [one.row for one in ready], gone)
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
            with self.reading() as db, closing(db.execute(sql, (*chosen.values, after))) as rows:
                page, size = [], 0
                while size < PAGE_BYTES and (found := rows.fetchone()) is not None:
                    page.append(found)
                    size += len(found[6])
            for found in page:
                if (chunk := self._decode(found)) is not None:
                    yield chunk
            if size < PAGE_BYTES and len(page) < PAGE_CHUNKS:
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

    def erase(self, game: GameId, player: PlayerId, views: Views = NO_VIEWS) -> Erased:
        """Remove the player's episodes from every file and refuse them from now on."""
        with self.writing() as db:
            return removal.erase(db, self.path, game, player, views)

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
                    db.execute("DELETE FROM quarantine WHERE arrived_ms < ?", (before_ms,))
                    db.execute("DELETE FROM minutes WHERE minute_ms < ?", (before_ms,))
            return removal.trim(db, before_ms=before_ms, max_bytes=max_bytes)

    def games(self) -> list[GameId]:
        """Every game that has chunks."""
        with self.reading() as db:
            return [GameId(game) for (game,) in db.execute(_GAMES)]

    def quarantine(self, rows: Sequence[Quarantined]) -> None:
        """One transaction, synced before this returns."""
        with self.writing() as db, transaction(db):
            db.executemany(_PUT_QUARANTINED, map(astuple, rows))

    def quarantined(self, game: GameId) -> Iterator[Quarantined]:
        """In the order of arrival."""
        with self.reading() as db:
            found = db.execute(_GET_QUARANTINED, (game,)).fetchall()
        return (Quarantined(*row) for row in found)

    def remember(self, name: str, value: str) -> str:
        """One transaction, synced before this returns."""
        if (known := self.fact(name)) is not None:
            return known
        with self.writing() as db, transaction(db):
            db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
        return self.fact(name) or value

    def fact(self, name: str) -> str | None:
        with self.reading() as db:
            found = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def count_minutes(self, rows: Sequence[MinuteCount]) -> None:
        """One transaction, synced before this returns."""
        with self.writing() as db, transaction(db):
            db.executemany(_PUT_COUNT, map(minute_row, rows))

    def minutes(self, game: GameId, since_ms: int) -> list[Minute]:
        """Summed over the batches, oldest first."""
        with self.reading() as db:
            found = db.execute(_GET_COUNT, (game, since_ms)).fetchall()
        return by_minute(map(minute_count, found))

    def close(self) -> None:
        """Let go of the file; the last one out empties the log."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
            while self._readers:
                self._readers.pop().close()
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
                if primary_code(error) == sqlite3.SQLITE_IOERR:
                    self._broken = said
                raise said from error

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to read from, given back at the end of the block."""
        if self._closed:
            raise StoreFailed("the store is closed", where=str(self.path), do="Open it again")
        with explained(str(self.path)):
            try:
                db = self._readers.pop()
            except IndexError:
                db = connect(self.path, self._busy_timeout_s)
                db.create_function("part_of", 2, _part_of, deterministic=True)
            try:
                yield db
            finally:
                if self._closed or len(self._readers) >= READERS:
                    db.close()
                else:
                    self._readers.append(db)

    def _decode(self, found: tuple[Any, ...]) -> Chunk | None:
        _, game, episode, seat, first_step, header, body, stored = found
        return self.damaged.decode((game, episode, seat, first_step), header, body, stored)


def _keep(db: sqlite3.Connection, one: Prepared, gone: set[tuple[str, int | None]]) -> AppendResult:
    row = one.row
    if gone and any((row.game, sign) in gone for sign in tombstone_marks(row)):
        return erased_verdict(of_player=(row.game, row.mark) in gone)
    place = (row.game, row.episode, row.seat, row.first_step)
    around = [Neighbour(*found) for found in db.execute(_AROUND, (*place, *place))]
    before = next((one for one in around if one.first_step <= row.first_step), None)
    after = next((one for one in around if one.first_step > row.first_step), None)
    kept = judge(row, before, after)
    if kept.verdict == "new":
        row_id = db.execute(_INSERT, (*row, row.seal())).lastrowid
        db.execute("INSERT INTO bodies VALUES (?, ?, ?)", (row_id, one.header, one.body))
    return kept


def _erased(db: sqlite3.Connection, marks: set[tuple[str, int | None]]) -> set[tuple[str, int | None]]:
    found = "SELECT 1 FROM tombstones WHERE game = ? AND mark = ?"
    return {one for one in marks if db.execute(found, one).fetchone()}


def _erase_late(db: sqlite3.Connection, rows: list[Row], gone: set[tuple[str, int | None]]) -> None:
    """An erased player played on, or their chunk was late: the other seats of that episode go, too."""
    for row in late_rows(rows, gone):
        # Only by one whose seat it is: a stranger who knows an episode's name must not remove it.
        if row.mark is not None and not db.execute(_OF_ANOTHER, (*row[:3], row.uploader)).fetchone():
            removal.erase_episodes(db, GameId(row.game), [EpisodeId(row.episode)], row.mark)
            gone.add((row.game, tombstone_marks(row)[0]))


def _part_of(episode: str, of: int) -> int:
    return zlib.crc32(episode.encode()) % of
