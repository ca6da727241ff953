"""Kinesis as a stream of chunks: kinesis://NAME?region=…&endpoint=…; see docs/stream.md.

Shards are read page by page: iterators are kept between pages and renewed, and a shard is read five times a second
at most. A record holds chunks of one episode from one uploader, up to 1 MiB; its partition key is the episode. Kinesis
does not keep the order of a request's records, and may refuse some and take others: so at most one record of an episode
is under way at a time, and the next follows when that one was taken.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sparring import aws
from sparring.errors import Missing, StoreFailed, Unreachable, WireError
from sparring.store.protocol import Appended, AppendResult
from sparring.stream.kinesis.client import SETTING, THROTTLED, Backoff, KinesisAddress, KinesisClient, Timeouts
from sparring.stream.protocol import BEGINNING, Page, Placed, Position, Shard, Stream, in_order
from sparring.wire import record
from sparring.wire.chunk import Chunk, encode
from sparring.wire.record import MAX_RECORD_BYTES, OVERHEAD_BYTES, PER_CHUNK_BYTES

OPENING = Timeouts(deadline_s=1.5, connect_s=2.0, read_s=4.0)  # so that a wrong setting is an error within 10 s
READY_S = 5.0
MADE_WITHIN_S = 5.0  # a stream that is just being made is waited for
READS_PER_S = 5  # of one shard, by all its readers together
MOST_RECORDS = 10_000  # of one GetRecords
MOST_PLACES = record.MAX_CHUNKS
FEW_RECORDS = 20  # that `tip` reads before it looks back from the end
LOOK_BACK_S = (0.1, 0.4, 1.6)  # of `tip`, in turn
ITERATOR_S = 240.0  # Kinesis forgets one after 300
BATCH_RECORDS, BATCH_BYTES = 500, 5_000_000  # of one PutRecords; 5 MB, by either way to count a megabyte
KEY_BYTES = 36  # of an episode's name, which counts as part of its record
ROOM_BYTES = MAX_RECORD_BYTES - KEY_BYTES - OVERHEAD_BYTES


def open_url(url: str, *, setting: str = SETTING, timeouts: Timeouts | None = None) -> "KinesisStream":
    """The stream, once it has answered. `setting` is where the URL was written, for errors."""
    address = KinesisAddress.read(url, setting)
    with closing(KinesisClient(address, OPENING)) as opened:
        _wait_active(opened)
    return KinesisStream(address, timeouts or Timeouts())


class KinesisStream(Stream):
    """One stream; a block closes it. Safe to call from several threads."""

    def __init__(self, address: KinesisAddress, timeouts: Timeouts) -> None:
        self.client = KinesisClient(address, timeouts)
        self._ready_until_s = -math.inf
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Position, str, float]] = {}  # by shard: an iterator that goes on after a position
        self._reads_s: dict[str, deque[float]] = {}  # by shard: when it was read last

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """Take the chunks in, in PutRecords of up to 500; what Kinesis refuses is tried again until the deadline.

        Raises where not all were taken; those that were are in the stream, and a second append of them is harmless.
        """
        write(self.client, to_records(chunks))
        return [AppendResult("taken")] * len(chunks)

    def shards(self) -> list[Shard]:
        """Every shard that still keeps something, parents before children."""
        return in_order(shard_of(one) for one in listed(self.client))

    def page(self, shard: Shard, after: Position, *, limit: int = MOST_RECORDS) -> Page:
        """One GetRecords; `limit` counts records, each of which may hold several chunks."""
        answer = self._get(shard.id, after, min(limit, MOST_RECORDS))
        placed = [one for found in answer["Records"] for one in self._placed(shard.id, found, after)]
        position = Position(answer["Records"][-1]["SequenceNumber"]) if answer["Records"] else after
        following = answer.get("NextShardIterator")
        if following:
            with self._lock:
                self._held[shard.id] = position, following, time.monotonic() + ITERATOR_S
        return Page(placed, position, not following, int(answer.get("MillisBehindLatest") or 0))

    def tip(self, shard: Shard, after: Position) -> Position:
        """A record near the shard's end: where more than one is new, the last of those in the newest moment found."""
        first = self._get(shard.id, after, FEW_RECORDS)
        found = _later(after, first)
        if not first.get("MillisBehindLatest"):
            # kinesalite says so always, and never answers a question about a time after which nothing came.
            full = len(first["Records"]) == FEW_RECORDS
            return _later(found, self._get(shard.id, found, MOST_RECORDS)) if full else found
        for back_s in LOOK_BACK_S:
            peeked = self._peek(shard.id, back_s)
            if peeked is not None and order(later := _later(found, peeked)) > order(found):
                return later
        return _later(found, self._get(shard.id, found, MOST_RECORDS))

    def ready(self) -> None:
        """Asks at most every READY_S: Kinesis allows few such questions a second, for all of an account together."""
        if time.monotonic() >= self._ready_until_s:
            _wait_active(self.client, within_s=0.0)
            self._ready_until_s = time.monotonic() + READY_S

    def close(self) -> None:
        """Close the connections; calls that wait end at once."""
        self.client.close()

    def _peek(self, shard: str, back_s: float) -> dict[str, Any] | None:
        """What came in the last moment, or None where the server has another idea of the time."""
        at = datetime.fromtimestamp(time.time() - back_s, UTC)
        try:
            iterator = self._new_iterator(shard, ShardIteratorType="AT_TIMESTAMP", Timestamp=at)
        except StoreFailed:
            return None
        return self._get(shard, BEGINNING, MOST_RECORDS, iterator)

    def _get(self, shard: str, after: Position, limit: int, iterator: str = "") -> dict[str, Any]:
        iterator, backoff = iterator or self._kept(shard, after), Backoff(self.client)
        while True:
            iterator = iterator or self._iterator(shard, after)
            self._wait_turn(shard)
            try:
                return self.client.once("get_records", ShardIterator=iterator, Limit=limit)
            except aws.AnyFault as error:
                if aws.code_of(error) == "ExpiredIteratorException":
                    iterator = ""
                elif not aws.passing(error):
                    raise aws.explain(error, self.client.address) from None
                if not backoff.wait():
                    raise aws.explain(error, self.client.address) from None

    def _kept(self, shard: str, after: Position) -> str:
        """The iterator that was left after that position, taken away: no two threads go on with one; or ""."""
        with self._lock:
            at, iterator, until_s = self._held.pop(shard, (after, "", 0.0))
        return iterator if at == after and time.monotonic() < until_s else ""

    def _iterator(self, shard: str, after: Position) -> str:
        sequence, place = split(after)
        if after == BEGINNING:
            return self._new_iterator(shard, ShardIteratorType="TRIM_HORIZON")
        kind = "AFTER_SEQUENCE_NUMBER" if place is None else "AT_SEQUENCE_NUMBER"
        return self._new_iterator(shard, ShardIteratorType=kind, StartingSequenceNumber=sequence)

    def _new_iterator(self, shard: str, **start: Any) -> str:
        answer = self.client("get_shard_iterator", StreamName=self.client.address.name, ShardId=shard, **start)
        return str(answer["ShardIterator"])

    def _wait_turn(self, shard: str) -> None:
        """Wait until a read may begin, so that no second has more than READS_PER_S of one shard."""
        with self._lock:
            reads_s, now_s = self._reads_s.setdefault(shard, deque(maxlen=READS_PER_S)), time.monotonic()
            begins_s = max(now_s, reads_s[0] + 1.0 if len(reads_s) == READS_PER_S else now_s)
            reads_s.append(begins_s)
        self.client.closed.wait(begins_s - now_s)

    def _placed(self, shard: str, found: dict[str, Any], after: Position) -> list[Placed]:
        """The chunks of one record. Data that is no record is given as it is: the sink quarantines it."""
        sequence, data = str(found["SequenceNumber"]), bytes(found["Data"])
        try:
            read = record.decode(data)
        except WireError:
            read = record.Record(record.Header(), [data])
        begun, place = split(after)
        first = place + 1 if begun == sequence and place is not None else 0
        uploader = read.header.uploader or f"stream:{self.client.address.name}"
        arrived_ms = read.header.received_at_ms or int(found["ApproximateArrivalTimestamp"].timestamp() * 1000)
        last = len(read.chunks) - 1
        return [
            Placed(
                shard, Position(sequence if at == last else f"{sequence}/{at}"), arrived_ms, uploader, read.chunks[at]
            )
            for at in range(first, last + 1)
        ]


def listed(client: KinesisClient) -> list[dict[str, Any]]:
    """All shards as Kinesis describes them."""
    answer = client("list_shards", StreamName=client.address.name)
    found: list[dict[str, Any]] = list(answer["Shards"])
    while token := answer.get("NextToken"):
        answer = client("list_shards", NextToken=token)
        found += answer["Shards"]
    return found


def shard_of(one: dict[str, Any]) -> Shard:
    parents = tuple(one[key] for key in ("ParentShardId", "AdjacentParentShardId") if one.get(key))
    return Shard(one["ShardId"], parents, "EndingSequenceNumber" in one["SequenceNumberRange"])


def _wait_active(client: KinesisClient, within_s: float = MADE_WITHIN_S) -> None:
    until_s = time.monotonic() + within_s
    while True:
        answer = client("describe_stream_summary", StreamName=client.address.name)
        status = answer.get("StreamDescriptionSummary", {}).get("StreamStatus", "")
        if not status:
            do = aws.not_a_server(client.address)
            raise Unreachable(f"{client.address.place} gave no sound answer", where=client.address.where, do=do)
        if status in ("ACTIVE", "UPDATING"):
            return
        if time.monotonic() > until_s:
            do = "Wait until `spar stream describe` says ACTIVE"
            raise Missing(f"the stream is {status}", where=client.address.where, do=do)
        client.closed.wait(0.1)


def order(position: Position) -> tuple[int, int]:
    """A sort key: positions of one shard in the order of their chunks."""
    sequence, place = split(position)
    return int(sequence or -1), MOST_PLACES if place is None else place


def _later(after: Position, answer: dict[str, Any]) -> Position:
    """The last record of an answer, or `after` where that comes later."""
    found = [Position(one["SequenceNumber"]) for one in answer["Records"][-1:]]
    return max([after, *found], key=order)


def split(position: Position) -> tuple[str, int | None]:
    """The sequence number, and the index of the last chunk read of its record; None where all of it was read."""
    sequence, _, place = position.partition("/")
    return sequence, int(place) if place else None


@dataclass(frozen=True, slots=True, eq=False)
class OutgoingRecord:
    """One record on its way."""

    episode: str
    data: bytes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return len(self.data) + KEY_BYTES


def to_records(chunks: Sequence[Chunk]) -> list[OutgoingRecord]:
    """The chunks as records, in order within each episode. WireError for a chunk that is too large for a record."""
    made: list[OutgoingRecord] = []
    for (episode, uploader), group in _by_episode(chunks).items():
        for part in _parts(group):
            header = record.Header(uploader=uploader, received_at_ms=max(at_ms for at_ms, _ in part))
            made.append(OutgoingRecord(episode, record.encode(record.Record(header, [data for _, data in part]))))
    return made


def _by_episode(chunks: Iterable[Chunk]) -> dict[tuple[str, str], list[tuple[int, bytes]]]:
    groups: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
    for chunk in chunks:
        head = chunk.header
        groups.setdefault((head.episode, head.uploader), []).append((head.received_at_ms, encode(chunk)))
    return groups


def _parts(group: list[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    """As few runs as fit into a record each."""
    parts: list[list[tuple[int, bytes]]] = [[]]
    size = 0
    for one in group:
        size += PER_CHUNK_BYTES + len(one[1])
        if parts[-1] and (size > ROOM_BYTES or len(parts[-1]) == record.MAX_CHUNKS):
            parts.append([])
            size = PER_CHUNK_BYTES + len(one[1])
        parts[-1].append(one)
    return parts


class SendQueue:
    """Records to send: of each episode its first that was not taken yet."""

    def __init__(self, records: Iterable[OutgoingRecord]) -> None:
        self._queues: dict[str, deque[OutgoingRecord]] = {}  # bounded by the records given
        self.left = 0
        for one in records:
            self._queues.setdefault(one.episode, deque()).append(one)
            self.left += 1

    def next(self) -> list[OutgoingRecord]:
        """One request's worth, longest waiting first; empty when all were taken."""
        batch: list[OutgoingRecord] = []
        size = 0
        for waiting in self._queues.values():
            size += waiting[0].size_bytes
            if batch and (len(batch) == BATCH_RECORDS or size > BATCH_BYTES):
                break
            batch.append(waiting[0])
        return batch

    def taken(self, one: OutgoingRecord) -> None:
        """It is in the stream: the next of its episode may follow."""
        waiting = self._queues.pop(one.episode)
        assert waiting[0] is one
        waiting.popleft()
        self.left -= 1
        if waiting:
            self._queues[one.episode] = waiting  # behind all others, so that a long episode does not hold them up

    def refused(self, one: OutgoingRecord) -> None:
        """It stays the first of its episode, and waits behind what was not tried yet."""
        self._queues[one.episode] = self._queues.pop(one.episode)


def write(client: KinesisClient, records: Sequence[OutgoingRecord]) -> None:
    """All of the records are in the stream on return. Otherwise raises a sentence, and some of them may be in it.

    A caller that sends such records again leaves them twice in the stream, never lost and never in another order.
    """
    queue, backoff = SendQueue(records), Backoff(client)
    while batch := queue.next():
        refused: Counter[str] = Counter()
        try:
            for one, code in zip(batch, _put(client, batch), strict=True):
                if code:
                    refused[code] += 1
                    queue.refused(one)
                else:
                    queue.taken(one)
        except aws.AnyFault as error:
            if not aws.passing(error) or not backoff.wait():
                raise aws.explain(error, client.address) from None
            continue
        if refused and not backoff.wait():
            raise _given_up(client, queue.left, len(records), refused)


def _put(client: KinesisClient, batch: list[OutgoingRecord]) -> list[str]:
    """For each record what Kinesis refused it with, "" where it was taken."""
    entries = [{"Data": one.data, "PartitionKey": one.episode} for one in batch]
    answer = client.once("put_records", StreamName=client.address.name, Records=entries)
    return [str(one.get("ErrorCode") or "") for one in answer["Records"]]


def _given_up(client: KinesisClient, left: int, of: int, refused: Counter[str]) -> StoreFailed:
    why = ", ".join(sorted(refused))
    do = "Add shards with `spar stream reshard`" if THROTTLED in refused else "Look at the server's log"
    wrong = f"{left} of {of} records were not taken within {client.timeouts.deadline_s:g} s ({why})"
    return StoreFailed(wrong, where=client.address.where, do=f"{do}, and send them again later")
