"""Appending: who was first is settled, then a player's pointer, then the chunk, then a last look at the tombstones.

The order is what makes a killed writer harmless. A claim without a chunk is invisible, and the retry completes it; a
pointer without a chunk points at nothing; a chunk without a pointer cannot be, so erasing finds everything.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sparring.errors import Unreachable
from sparring.store.cassandra import erasure as removing
from sparring.store.cassandra.episode_state import Known, Piece
from sparring.store.cassandra.partitions import Layout, Place
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import Appended, AppendResult
from sparring.store.rows import Neighbour, Row, prepare
from sparring.wire.chunk import Chunk
from sparring.wire.ids import EpisodeId, GameId

BATCH_BYTES = 40_000  # Cassandra refuses a batch above 50 KiB
ROW_BYTES = 1_200  # what a chunk's two rows take beside header and body
STAMP_EVERY_S = 30.0  # readers look again at what changed in the last minutes, so this need not be more often
CLAIM_TRIES = 12

_CHUNK = (*Row._fields, "arrived", "header", "body", "day", "bucket")
_INSERT = f"INSERT INTO chunks ({', '.join(_CHUNK)}) VALUES ({', '.join('?' * len(_CHUNK))})"
_ARRIVAL = (
    "game, day, bucket, arrived, episode, seat, first_step, steps, version, source, actor, mark, ending, "
    "received_at_ms, size_bytes"
)
_INSERT_ARRIVAL = f"INSERT INTO chunks_by_arrival ({_ARRIVAL}) VALUES ({', '.join('?' * 15)})"
_POINT = "INSERT INTO chunks_by_player (game, mark, episode, seat) VALUES (?, ?, ?, ?)"
_KEPT = """SELECT episode, seat, first_step, steps, ending, uploader, content, arrived FROM chunks
    WHERE game = ? AND day = ? AND bucket = ? AND episode IN ?"""
_CLAIMS = """SELECT seat, first_step, steps, ending, uploader, content, revision FROM claims_by_episode
    WHERE game = ? AND episode = ?"""
_CLAIM = "UPDATE claims_by_episode SET revision = ? WHERE game = ? AND episode = ? IF revision = ?"
_CLAIM_CHUNK = """INSERT INTO claims_by_episode (game, episode, seat, first_step, steps, ending, uploader, content)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_DAY = "INSERT INTO days (game, day, changed) VALUES (?, ?, ?)"
_BUCKET = "INSERT INTO buckets (game, day, bucket, changed) VALUES (?, ?, ?, ?)"

EpisodeKey = tuple[GameId, EpisodeId]
Item = TypeVar("Item")


class Appender:
    """The way in. `sole` writers need no transactions: no one else writes their episodes meanwhile."""

    def __init__(self, ring: CassandraSession, layout: Callable[[], Layout], *, sole: bool) -> None:
        self._ring, self._layout, self._sole = ring, layout, sole
        self._writing = threading.Lock()  # of a sole writer's threads
        self._stamping = threading.Lock()
        self._last_stamp = 0
        self._stamped: dict[Place, float] = {}

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """Each is judged alone; durable on the replicas that the consistency level asks for."""
        layout, results = self._layout(), [AppendResult("new")] * len(chunks)
        pieces = []
        for at, chunk in enumerate(chunks):
            place = layout.place(chunk.header.game, chunk.header.episode)
            pieces.append(Piece(at, prepare(chunk), place, self._stamp()))
        gone = removing.erased(self._ring, {(p.row.game, p.row.mark) for p in pieces if p.row.mark is not None})
        for piece in pieces:
            if (piece.row.game, piece.row.mark) in gone:
                results[piece.at] = _gone(piece)
        pieces = [piece for piece in pieces if results[piece.at].verdict == "new"]
        if self._sole:
            with self._writing:
                self._keep(pieces, results)
        else:
            self._keep(pieces, results)
        return results

    def _keep(self, pieces: list[Piece], results: Appended) -> None:
        settled = self._settled(pieces)
        for piece, kept, arrived in settled:
            results[piece.at] = kept
            if arrived is not None:
                piece.arrived = arrived
        self._write([p for p, kept, _ in settled if kept.verdict == "new"])
        # A large chunk and its row by arrival are two writes; a retry makes up for a writer that died between.
        again = [p for p, kept, arrived in settled if arrived is not None and _size(p) > BATCH_BYTES]
        self._ring.all(self._arrival(p) for p in again)
        self._last_look([p for p, kept, _ in settled if kept.verdict == "new"], results)

    def _settled(self, pieces: list[Piece]) -> list[tuple[Piece, AppendResult, int | None]]:
        """The verdict on each, final whoever else writes; with the stamp of one that was there before."""
        waiting: dict[EpisodeKey, list[Piece]] = defaultdict(list)
        for piece in pieces:
            waiting[GameId(piece.row.game), EpisodeId(piece.row.episode)].append(piece)
        settled: list[tuple[Piece, AppendResult, int | None]] = []
        for tries in range(CLAIM_TRIES):
            known = self._known(waiting)
            claims, judged = {}, {}
            for key, group in waiting.items():
                had = set(known[key].claimed)
                judged[key] = [(p, known[key].judge(p), known[key].arrived.get(p.spot)) for p in group]
                new = [p for p, kept, _ in judged[key] if kept.verdict == "new" and p.spot not in had]
                if new and not self._sole:
                    claims[key] = self._claim(key, known[key].revision, new)
            lost = self._lost(claims)
            settled += [one for key, found in judged.items() if key not in lost for one in found]
            waiting = {key: waiting[key] for key in lost}
            if not waiting:
                return settled
            time.sleep(random.uniform(0, 0.01 * 2 ** min(tries, 6)))
        episode = next(iter(waiting))[1]
        raise Unreachable(
            f"too many write episode {episode} at once", where=self._ring.where, do="Send it again in a moment"
        )

    def _known(self, keys: Iterable[EpisodeKey]) -> dict[EpisodeKey, Known]:
        known, layout = {key: Known() for key in keys}, self._layout()
        places: dict[Place, list[EpisodeId]] = defaultdict(list)
        for key in known:
            places[layout.place(*key)].append(key[1])
        jobs = [(place, group) for place, named in places.items() for group in _groups(named)]
        for (place, _), rows in zip(
            jobs, self._ring.all(self._ring.look(_KEPT, (*p, e)) for p, e in jobs), strict=True
        ):
            for episode, seat, first_step, steps, ending, uploader, content, arrived in rows:
                found = known[place.game, EpisodeId(episode)]
                found.add(seat, Neighbour(first_step, steps, ending, uploader, content))
                found.arrived[seat, first_step] = arrived
        if not self._sole:
            self._add_claims(known)
        return known

    def _add_claims(self, known: dict[EpisodeKey, Known]) -> None:
        answers = self._ring.all(self._ring.look(_CLAIMS, key) for key in known)
        for found, rows in zip(known.values(), answers, strict=True):
            for seat, first_step, steps, ending, uploader, content, revision in rows:
                found.revision = revision
                if seat is not None and content is not None and (seat, first_step) not in found.arrived:
                    found.add(seat, Neighbour(first_step, steps, ending, uploader, content))
                    found.claimed.add((seat, first_step))

    def _claim(self, key: EpisodeKey, revision: int | None, new: list[Piece]) -> Any:
        """One lightweight transaction: nobody claimed anything of this episode since it was looked at."""
        statements = [self._ring.once(_CLAIM, ((revision or 0) + 1, *key, revision))]
        for row in (piece.row for piece in new):
            values = (row.seat, row.first_step, row.steps, row.ending, row.uploader, row.content)
            statements.append(self._ring.once(_CLAIM_CHUNK, (*key, *values)))
        return self._ring.batch(statements, conditional=True)

    def _lost(self, claims: dict[EpisodeKey, Any]) -> set[EpisodeKey]:
        answers = self._ring.all(claims.values())
        return {key for key, rows in zip(claims, answers, strict=True) if not rows[0][0]}

    def _write(self, pieces: list[Piece]) -> None:
        stamps, stamped = self._stamps({piece.place for piece in pieces})
        self._ring.all([*self._pointers(pieces), *stamps])
        self._stamped |= stamped
        groups: dict[Place, list[Piece]] = defaultdict(list)
        for piece in pieces:
            groups[piece.place].append(piece)
        large = [p for p in pieces if _size(p) > BATCH_BYTES]
        self._ring.all([*self._batches(groups), *(self._insert(p) for p in large)])
        self._ring.all(self._arrival(p) for p in large)

    def _pointers(self, pieces: list[Piece]) -> Iterable[Any]:
        seats: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
        for row in (piece.row for piece in pieces):
            if row.mark is not None:
                seats[row.game, row.mark].add((row.episode, row.seat))
        for player, theirs in seats.items():
            for group in _groups(sorted(theirs)):
                yield self._ring.batch(self._ring.write(_POINT, (*player, *one)) for one in group)

    def _batches(self, groups: dict[Place, list[Piece]]) -> Iterable[Any]:
        for pieces in groups.values():
            batch: list[Any] = []
            held = 0
            for piece in pieces:
                size = _size(piece)
                if size > BATCH_BYTES:
                    continue
                if held + size > BATCH_BYTES:
                    yield self._ring.batch(batch)
                    batch, held = [], 0
                batch += [self._insert(piece), self._arrival(piece)]
                held += size
            if batch:
                yield self._ring.batch(batch)

    def _insert(self, piece: Piece) -> Any:
        values = (*piece.row, piece.arrived, piece.ready.header, piece.ready.body, piece.place.day, piece.place.bucket)
        return self._ring.write(_INSERT, values)

    def _arrival(self, piece: Piece) -> Any:
        row = piece.row
        key = (*piece.place, piece.arrived, row.episode, row.seat, row.first_step)
        said = (row.steps, row.version, row.source, row.actor, row.mark, row.ending, row.received_at_ms, row.size_bytes)
        return self._ring.write(_INSERT_ARRIVAL, (*key, *said))

    def _last_look(self, pieces: list[Piece], results: Appended) -> None:
        """A player erased meanwhile: the eraser saw our pointer, or we see its tombstone now."""
        gone = removing.erased(self._ring, {(p.row.game, p.row.mark) for p in pieces if p.row.mark is not None})
        late = [p for p in pieces if (p.row.game, p.row.mark) in gone]
        if late:
            removing.remove_rows(self._ring, [(p.place, p.row, p.arrived) for p in late], removing.erasure_stamp())
            for game in {piece.place.game for piece in late}:
                removing.removed(self._ring, game)
            for piece in late:
                results[piece.at] = _gone(piece)

    def _stamp(self) -> int:
        with self._stamping:
            self._last_stamp = max(self._last_stamp + 1, time.time_ns() // 1_000)
            return self._last_stamp

    def _stamps(self, places: set[Place]) -> tuple[list[Any], dict[Place, float]]:
        """What tells readers that these partitions exist and have changed; nothing for one told moments ago."""
        now_s = time.monotonic()
        due = sorted(p for p in places if now_s - self._stamped.get(p, -STAMP_EVERY_S) >= STAMP_EVERY_S)
        changed = self._stamp()
        days = {(place.game, place.day) for place in due}
        statements = [self._ring.write(_DAY, (*day, changed)) for day in sorted(days)]
        for day in sorted(days):
            of_day = [self._ring.write(_BUCKET, (*p, changed)) for p in due if (p.game, p.day) == day]
            statements += [self._ring.batch(group) for group in _groups(of_day)]
        if len(self._stamped) > 100_000:  # a year of a few games; the next stamps are only more often than need be
            self._stamped.clear()
        return statements, dict.fromkeys(due, now_s)


def _groups(items: list[Item]) -> list[list[Item]]:
    """A hundred at a time: as many rows as one statement should name."""
    return [items[at : at + 100] for at in range(0, len(items), 100)]


def _size(piece: Piece) -> int:
    return piece.row.size_bytes + ROW_BYTES


def _gone(piece: Piece) -> AppendResult:
    return AppendResult(
        "gone", "this player was erased and nothing more is kept of them", "player", str(piece.row.player)
    )
