"""Records out of a shard, page by page: iterators kept between pages and renewed, five reads a second at most."""

import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any

from sparring.errors import StoreFailed, WireError
from sparring.stream.kinesis import errors
from sparring.stream.kinesis.client import Backoff, KinesisClient
from sparring.stream.protocol import BEGINNING, Page, Placed, Position, Shard
from sparring.wire import record

READS_PER_S = 5  # of one shard, by all its readers together
MOST_RECORDS = 10_000  # of one GetRecords
MOST_PLACES = record.MAX_CHUNKS
FEW_RECORDS = 20  # that `tip` reads before it looks back from the end
LOOK_BACK_S = (0.1, 0.4, 1.6)  # of `tip`, in turn
ITERATOR_S = 240.0  # Kinesis forgets one after 300


class ShardIterators:
    """Reads any shard of one stream. Safe to call from several threads."""

    def __init__(self, client: KinesisClient) -> None:
        self._client, self._lock = client, threading.Lock()
        self._held: dict[str, tuple[Position, str, float]] = {}  # by shard: an iterator that goes on after a position
        self._reads_s: dict[str, deque[float]] = {}  # by shard: when it was read last

    def page(self, shard: Shard, after: Position, limit: int) -> Page:
        """One GetRecords, of at most `limit` records."""
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

    def _peek(self, shard: str, back_s: float) -> dict[str, Any] | None:
        """What came in the last moment, or None where the server has another idea of the time."""
        at = datetime.fromtimestamp(time.time() - back_s, UTC)
        try:
            iterator = self._new_iterator(shard, ShardIteratorType="AT_TIMESTAMP", Timestamp=at)
        except StoreFailed:
            return None
        return self._get(shard, BEGINNING, MOST_RECORDS, iterator)

    def _get(self, shard: str, after: Position, limit: int, iterator: str = "") -> dict[str, Any]:
        iterator, backoff = iterator or self._kept(shard, after), Backoff(self._client)
        while True:
            iterator = iterator or self._iterator(shard, after)
            self._wait_turn(shard)
            try:
                return self._client.once("get_records", ShardIterator=iterator, Limit=limit)
            except errors.AnyFault as error:
                if errors.code_of(error) == errors.ITERATOR_EXPIRED:
                    iterator = ""
                elif not errors.passing(error):
                    raise errors.explain(error, self._client.address) from None
                if not backoff.wait():
                    raise errors.explain(error, self._client.address) from None

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
        answer = self._client("get_shard_iterator", StreamName=self._client.address.name, ShardId=shard, **start)
        return str(answer["ShardIterator"])

    def _wait_turn(self, shard: str) -> None:
        """Wait until a read may begin, so that no second has more than READS_PER_S of one shard."""
        with self._lock:
            reads_s, now_s = self._reads_s.setdefault(shard, deque(maxlen=READS_PER_S)), time.monotonic()
            begins_s = max(now_s, reads_s[0] + 1.0 if len(reads_s) == READS_PER_S else now_s)
            reads_s.append(begins_s)
        self._client.closed.wait(begins_s - now_s)

    def _placed(self, shard: str, found: dict[str, Any], after: Position) -> list[Placed]:
        """The chunks of one record. Data that is no record is given as it is: the sink quarantines it."""
        sequence, data = str(found["SequenceNumber"]), bytes(found["Data"])
        try:
            read = record.decode(data)
        except WireError:
            read = record.Record(record.Header(), [data])
        begun, place = split(after)
        first = place + 1 if begun == sequence and place is not None else 0
        uploader = read.header.uploader or f"stream:{self._client.address.name}"
        arrived_ms = read.header.received_at_ms or int(found["ApproximateArrivalTimestamp"].timestamp() * 1000)
        last = len(read.chunks) - 1
        return [
            Placed(
                shard, Position(sequence if at == last else f"{sequence}/{at}"), arrived_ms, uploader, read.chunks[at]
            )
            for at in range(first, last + 1)
        ]


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
