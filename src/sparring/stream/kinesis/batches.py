"""Chunks into records, and records into requests. Decides without I/O.

A record holds chunks of one episode from one uploader, up to 1 MiB; its partition key is the episode. Kinesis does not
keep the order of a request's records, and may refuse some and take others: so at most one record of an episode is
under way at a time, and the next follows when that one was taken.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sparring.wire import record
from sparring.wire.chunk import Chunk, encode
from sparring.wire.record import MAX_RECORD_BYTES, OVERHEAD_BYTES, PER_CHUNK_BYTES

BATCH_RECORDS, BATCH_BYTES = 500, 5_000_000  # of one PutRecords; 5 MB, whichever way Amazon counts a megabyte
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


def packed(chunks: Sequence[Chunk]) -> list[OutgoingRecord]:
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
    """What may be sent next of some records: of each episode its first that was not taken yet."""

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
        for line in self._queues.values():
            size += line[0].size_bytes
            if batch and (len(batch) == BATCH_RECORDS or size > BATCH_BYTES):
                break
            batch.append(line[0])
        return batch

    def taken(self, one: OutgoingRecord) -> None:
        """It is in the stream: the next of its episode may follow."""
        line = self._queues.pop(one.episode)
        assert line[0] is one
        line.popleft()
        self.left -= 1
        if line:
            self._queues[one.episode] = line  # behind all others, so that a long episode does not hold them up

    def refused(self, one: OutgoingRecord) -> None:
        """It stays the first of its episode, and waits behind what was not tried yet."""
        self._queues[one.episode] = self._queues.pop(one.episode)
