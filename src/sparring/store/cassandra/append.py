"""Appending: a claim settles which writer was first; then the player's pointer, the chunk, a last look at tombstones.

The order is what makes a killed writer harmless. A claim without a chunk is invisible, and the retry completes it; a
pointer without a chunk points at nothing; a chunk without a pointer cannot be, so erasing finds everything.
"""

import bisect
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparring.errors import Unreachable
from sparring.store.cassandra import removal
from sparring.store.cassandra.reader import Arrival
from sparring.store.cassandra.schema import BucketLayout, Partition, Stored
from sparring.store.cassandra.session import CassandraSession, hundreds
from sparring.store.protocol import Appended, AppendResult
from sparring.store.records import erased_verdict, insert
from sparring.store.rows import Neighbour, Prepared, Row, judge, prepare, tombstone_marks
from sparring.wire.chunk import Chunk
from sparring.wire.ids import EpisodeId, GameId

BATCH_BYTES = 40_000  # Cassandra refuses a batch above 50 KiB
ROW_BYTES = 1_200  # what a chunk's two rows take beside header and body
STAMP_EVERY_S = 30.0  # readers look again at what changed in the last minutes, so this need not be more often
CLAIM_TRIES = 12

_INSERT = insert("chunks", (*Row._fields, "arrived", "header", "body", "day", "bucket"))
_INSERT_ARRIVAL = insert("chunks_by_arrival", ("game", "day", "bucket", *Arrival._fields))
_KEPT = """SELECT episode, seat, first_step, steps, ending, uploader, content, batch_id, arrived FROM chunks
    WHERE game = ? AND day = ? AND bucket = ? AND episode IN ?"""
_CLAIMS = """SELECT seat, first_step, steps, ending, uploader, content, revision FROM claims_by_episode
    WHERE game = ? AND episode = ?"""
_CLAIM = "UPDATE claims_by_episode SET revision = ? WHERE game = ? AND episode = ? IF revision = ?"
_CLAIM_CHUNK = """INSERT INTO claims_by_episode (game, episode, seat, first_step, steps, ending, uploader, content)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_DAY = "INSERT INTO days (game, day, changed) VALUES (?, ?, ?)"
_BUCKET = "INSERT INTO buckets (game, day, bucket, changed) VALUES (?, ?, ?, ?)"

EpisodeKey = tuple[GameId, EpisodeId]
SeatStep = tuple[int, int]  # seat, first_step


@dataclass(slots=True)
class PendingChunk:
    """A chunk on its way in."""

    at: int  # in the append
    ready: Prepared
    partition: Partition
    arrived: int  # microseconds, rising: the order of receipt

    @property
    def row(self) -> Row:
        return self.ready.row

    @property
    def seat_step(self) -> SeatStep:
        return self.row.seat, self.row.first_step


@dataclass(slots=True)
class EpisodeState:
    """The chunks of one episode: those kept, and those that a writer has claimed and not yet written."""

    revision: int | None = None
    seats: dict[int, list[Neighbour]] = field(default_factory=dict)  # by first_step
    arrived: dict[SeatStep, int] = field(default_factory=dict)  # of those kept
    claimed: set[SeatStep] = field(default_factory=set)

    def add(self, seat: int, near: Neighbour) -> None:
        """One more chunk, in the order of steps."""
        bisect.insort(self.seats.setdefault(seat, []), near, key=lambda one: one.first_step)

    def judge(self, chunk: PendingChunk) -> AppendResult:
        """Whether the chunk may be stored; one that may counts as stored for the next."""
        row, near = chunk.row, self.seats.get(chunk.row.seat, [])
        at = bisect.bisect_right(near, row.first_step, key=lambda one: one.first_step)
        kept = judge(row, near[at - 1] if at else None, near[at] if at < len(near) else None)
        if kept.verdict == "new":
            self.add(
                row.seat, Neighbour(row.first_step, row.steps, row.ending, row.uploader, row.content, row.batch_id)
            )
        elif kept.verdict == "had" and chunk.seat_step in self.claimed:
            self.claimed.discard(chunk.seat_step)  # claimed by a writer that died, or is about to write the same
            return AppendResult("new")
        return kept


class Appender:
    """Writes chunks. A `sole` writer needs no transactions: no other process writes its episodes meanwhile."""

    def __init__(self, session: CassandraSession, layout: Callable[[], BucketLayout], *, sole: bool) -> None:
        self._session, self._layout, self._sole = session, layout, sole
        self._writing = threading.Lock()  # of a sole writer's threads
        self._stamping = threading.Lock()
        self._last_stamp = 0
        self._stamped: dict[Partition, float] = {}

    def append(self, chunks: Sequence[Chunk], batch: str) -> Appended:
        """Each is judged alone; durable on the replicas that the consistency level asks for."""
        layout, results = self._layout(), [AppendResult("new")] * len(chunks)
        pending = []
        for at, chunk in enumerate(chunks):
            partition = layout.partition(chunk.header.game, chunk.header.episode)
            pending.append(PendingChunk(at, prepare(chunk, batch), partition, self._stamp()))
        pending = self._not_erased(pending, results)
        if self._sole:
            with self._writing:
                self._keep(pending, results)
        else:
            self._keep(pending, results)
        return results

    def _keep(self, pending: list[PendingChunk], results: Appended) -> None:
        settled = self._settled(pending)
        for chunk, kept, arrived in settled:
            results[chunk.at] = kept
            if arrived is not None:
                chunk.arrived = arrived
        self._write([p for p, kept, _ in settled if kept.verdict == "new"])
        # A large chunk and its row by arrival are two writes; a retry makes up for a writer that died between.
        again = [p for p, kept, arrived in settled if arrived is not None and _size(p) > BATCH_BYTES]
        self._session.all(self._arrival(p) for p in again)
        self._last_look([p for p, kept, _ in settled if kept.verdict == "new"], results)

    def _settled(self, pending: list[PendingChunk]) -> list[tuple[PendingChunk, AppendResult, int | None]]:
        """The final verdict on each, whatever other writers do; with the stamp of one that was there before."""
        waiting: dict[EpisodeKey, list[PendingChunk]] = defaultdict(list)
        for chunk in pending:
            waiting[GameId(chunk.row.game), EpisodeId(chunk.row.episode)].append(chunk)
        settled: list[tuple[PendingChunk, AppendResult, int | None]] = []
        for tries in range(CLAIM_TRIES):
            known = self._known(waiting)
            claims, judged = {}, {}
            for key, group in waiting.items():
                had = set(known[key].claimed)
                judged[key] = [(p, known[key].judge(p), known[key].arrived.get(p.seat_step)) for p in group]
                new = [p for p, kept, _ in judged[key] if kept.verdict == "new" and p.seat_step not in had]
                if new and not self._sole:
                    claims[key] = self._claim(key, known[key].revision, new)
            answers = zip(claims, self._session.all(claims.values()), strict=True)
            lost = {key for key, rows in answers if not rows[0][0]}
            settled += [one for key, found in judged.items() if key not in lost for one in found]
            waiting = {key: waiting[key] for key in lost}
            if not waiting:
                return settled
            time.sleep(random.uniform(0, 0.01 * 2 ** min(tries, 6)))
        episode = next(iter(waiting))[1]
        wrong, do = f"too many write episode {episode} at once", "Send it again in a moment"
        raise Unreachable(wrong, where=self._session.where, do=do)

    def _known(self, keys: Iterable[EpisodeKey]) -> dict[EpisodeKey, EpisodeState]:
        known, layout = {key: EpisodeState() for key in keys}, self._layout()
        partitions: dict[Partition, list[EpisodeId]] = defaultdict(list)
        for key in known:
            partitions[layout.partition(*key)].append(key[1])
        jobs = [(partition, group) for partition, named in partitions.items() for group in hundreds(named)]
        answers = self._session.all(self._session.look(_KEPT, (*at, episodes)) for at, episodes in jobs)
        for (partition, _), rows in zip(jobs, answers, strict=True):
            for episode, seat, first_step, *near, arrived in rows:
                found = known[partition.game, EpisodeId(episode)]
                found.add(seat, Neighbour(first_step, *near))
                found.arrived[seat, first_step] = arrived
        if not self._sole:
            self._add_claims(known)
        return known

    def _add_claims(self, known: dict[EpisodeKey, EpisodeState]) -> None:
        answers = self._session.all(self._session.look(_CLAIMS, key) for key in known)
        for found, rows in zip(known.values(), answers, strict=True):
            for seat, first_step, steps, ending, uploader, content, revision in rows:
                found.revision = revision
                if seat is not None and content is not None and (seat, first_step) not in found.arrived:
                    found.add(seat, Neighbour(first_step, steps, ending, uploader, content, 0))
                    found.claimed.add((seat, first_step))

    def _claim(self, key: EpisodeKey, revision: int | None, new: list[PendingChunk]) -> Any:
        """One lightweight transaction: no other writer claimed a chunk of this episode since it was read."""
        statements = [self._session.once(_CLAIM, ((revision or 0) + 1, *key, revision))]
        for row in (chunk.row for chunk in new):
            values = (row.seat, row.first_step, row.steps, row.ending, row.uploader, row.content)
            statements.append(self._session.once(_CLAIM_CHUNK, (*key, *values)))
        return self._session.batch(statements, conditional=True)

    def _write(self, pending: list[PendingChunk]) -> None:
        stamps, stamped = self._stamps({chunk.partition for chunk in pending})
        self._session.all([*self._pointers(pending), *stamps])
        self._stamped |= stamped
        groups: dict[Partition, list[PendingChunk]] = defaultdict(list)
        for chunk in pending:
            groups[chunk.partition].append(chunk)
        large = [p for p in pending if _size(p) > BATCH_BYTES]
        self._session.all([*self._batches(groups), *(self._insert(p) for p in large)])
        self._session.all(self._arrival(p) for p in large)

    def _pointers(self, pending: list[PendingChunk]) -> Iterable[Any]:
        seats: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
        for row in (chunk.row for chunk in pending):
            if row.mark is not None:
                seats[row.game, row.mark].add((row.episode, row.seat))
        for player, theirs in seats.items():
            for group in hundreds(sorted(theirs)):
                yield self._session.batch(self._session.write(removal.POINT, (*player, *one)) for one in group)

    def _batches(self, groups: dict[Partition, list[PendingChunk]]) -> Iterable[Any]:
        for pending in groups.values():
            batch: list[Any] = []
            held = 0
            for chunk in pending:
                size = _size(chunk)
                if size > BATCH_BYTES:
                    continue
                if held + size > BATCH_BYTES:
                    yield self._session.batch(batch)
                    batch, held = [], 0
                batch += [self._insert(chunk), self._arrival(chunk)]
                held += size
            if batch:
                yield self._session.batch(batch)

    def _insert(self, chunk: PendingChunk) -> Any:
        values = (
            *chunk.row,
            chunk.arrived,
            chunk.ready.header,
            chunk.ready.body,
            chunk.partition.day,
            chunk.partition.bucket,
        )
        return self._session.write(_INSERT, values)

    def _arrival(self, chunk: PendingChunk) -> Any:
        return self._session.write(_INSERT_ARRIVAL, (*chunk.partition, *Arrival.of(chunk.row, chunk.arrived)))

    def _last_look(self, pending: list[PendingChunk], results: Appended) -> None:
        """A player erased meanwhile: the eraser saw our pointer or row, or we see its tombstone now."""
        self._not_erased(pending, results)
        late = [p for p in pending if results[p.at].verdict == "gone"]
        if late:
            removal.remove_rows(
                self._session, [Stored(p.partition, p.row, p.arrived) for p in late], removal.erasure_stamp()
            )
            for game in {chunk.partition.game for chunk in late}:
                removal.removed(self._session, game)

    def _not_erased(self, pending: list[PendingChunk], results: Appended) -> list[PendingChunk]:
        """Those for which no tombstone stands; the others have their verdict."""
        marks = {chunk.at: [(chunk.row.game, one) for one in tombstone_marks(chunk.row)] for chunk in pending}
        gone = removal.erased(self._session, {one for some in marks.values() for one in some})
        if not gone:
            return pending
        removal.erase_late(self._session, self._layout(), [chunk.row for chunk in pending], gone)
        for chunk in pending:
            if not gone.isdisjoint(marks[chunk.at]):
                results[chunk.at] = erased_verdict(of_player=(chunk.row.game, chunk.row.mark) in gone)
        return [chunk for chunk in pending if results[chunk.at].verdict != "gone"]

    def _stamp(self) -> int:
        with self._stamping:
            self._last_stamp = max(self._last_stamp + 1, time.time_ns() // 1_000)
            return self._last_stamp

    def _stamps(self, partitions: set[Partition]) -> tuple[list[Any], dict[Partition, float]]:
        """Statements that show readers that partitions exist and have changed; none for one stamped moments ago."""
        now_s = time.monotonic()
        due = sorted(p for p in partitions if now_s - self._stamped.get(p, -STAMP_EVERY_S) >= STAMP_EVERY_S)
        changed = self._stamp()
        days = {(partition.game, partition.day) for partition in due}
        statements = [self._session.write(_DAY, (*day, changed)) for day in sorted(days)]
        for day in sorted(days):
            of_day = [self._session.write(_BUCKET, (*p, changed)) for p in due if (p.game, p.day) == day]
            statements += [self._session.batch(group) for group in hundreds(of_day)]
        if len(self._stamped) > 100_000:  # a year of a few games; the next stamps are only more often than need be
            self._stamped.clear()
        return statements, dict.fromkeys(due, now_s)


def _size(chunk: PendingChunk) -> int:
    return chunk.row.size_bytes + ROW_BYTES
