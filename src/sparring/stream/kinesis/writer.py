"""Chunks into records, records into requests, and those into Kinesis.

A record holds chunks of one episode from one uploader, up to 1 MiB; its partition key is the episode. Kinesis does not
keep the order of a request's records, and may refuse some and take others: so at most one record of an episode is
under way at a time, and the next follows when that one was taken.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sparring.errors import StoreFailed
from sparring.stream.kinesis import errors
from sparring.stream.kinesis.client import Backoff, KinesisClient
from sparring.wire import record
from sparring.wire.chunk import Chunk, encode
from sparring.wire.record import MAX_RECORD_BYTES, OVERHEAD_BYTES, PER_CHUNK_BYTES

BATCH_RECORDS, BATCH_BYTES = 500, 5_000_000  # of one PutRecords; 5 MB, by either way to count a megabyte
KEY_BYTES = 36  # of an episode's name, which counts as part of its record
ROOM_BYTES = MAX_RECORD_BYTES - KEY_BYTES - OVERHEAD_BYTES


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
        except errors.AnyFault as error:
            if not errors.passing(error) or not backoff.wait():
                raise errors.explain(error, client.address) from None
            continue
        if not refused:
            backoff.succeeded()
        elif not backoff.wait():
            raise _given_up(client, queue.left, len(records), refused)


def _put(client: KinesisClient, batch: list[OutgoingRecord]) -> list[str]:
    """For each record what Kinesis refused it with, "" where it was taken."""
    entries = [{"Data": one.data, "PartitionKey": one.episode} for one in batch]
    answer = client.once("put_records", StreamName=client.address.name, Records=entries)
    return [str(one.get("ErrorCode") or "") for one in answer["Records"]]


def _given_up(client: KinesisClient, left: int, of: int, refused: Counter[str]) -> StoreFailed:
    why = ", ".join(sorted(refused))
    do = "Look at the server's log"
    if errors.THROTTLED & set(refused):
        do = "Add shards with `spar stream reshard`"
    wrong = f"{left} of {of} records were not taken within {client.timeouts.deadline_s:g} s ({why})"
    return StoreFailed(wrong, where=client.address.where, do=f"{do}, and send them again later")
