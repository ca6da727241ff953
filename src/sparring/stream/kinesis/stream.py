"""Kinesis as a stream of chunks: kinesis://NAME?region=…&endpoint=…; see docs/stream.md."""

import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sparring.errors import Missing, Unreachable
from sparring.store.protocol import Appended, AppendResult
from sparring.stream.kinesis.client import KinesisClient, Timeouts
from sparring.stream.kinesis.reader import MOST_RECORDS, ShardIterators
from sparring.stream.kinesis.url import SETTING, KinesisAddress
from sparring.stream.kinesis.writer import to_records, write
from sparring.stream.protocol import Page, Placed, Position, Shard, Stream
from sparring.stream.shards import in_order
from sparring.wire.chunk import Chunk

OPENING = Timeouts(deadline_s=1.5, connect_s=2.0, read_s=4.0)  # so that a wrong setting is an error within 10 s
READY_S = 5.0
MADE_WITHIN_S = 5.0  # a stream that is just being made is waited for


def open_url(url: str, *, setting: str = SETTING, timeouts: Timeouts | None = None) -> "KinesisStream":
    """The stream, once it has answered. `setting` is where the URL was written, for errors."""
    address = KinesisAddress.read(url, setting)
    opened = KinesisClient(address, OPENING, random.Random())
    try:
        _wait_active(opened)
    finally:
        opened.close()
    return KinesisStream(address, timeouts or Timeouts())


class KinesisStream(Stream):
    """One stream; a block closes it. Safe to call from several threads."""

    def __init__(self, address: KinesisAddress, timeouts: Timeouts) -> None:
        self.address = address
        self._client = KinesisClient(address, timeouts, random.Random())
        self._reader = ShardIterators(self._client)
        self._ready_until_s = -math.inf

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """Take the chunks in, in PutRecords of up to 500; what Kinesis refuses is tried again until the deadline.

        Raises where not all were taken; those that were are in the stream, and a second append of them is harmless.
        """
        write(self._client, to_records(chunks))
        return [AppendResult("taken")] * len(chunks)

    def shards(self) -> list[Shard]:
        """Every shard that still keeps something, parents before children."""
        return in_order(shard_of(one) for one in listed(self._client))

    def page(self, shard: Shard, after: Position, *, limit: int = MOST_RECORDS) -> Page:
        """One GetRecords; `limit` counts records, each of which may hold several chunks."""
        return self._reader.page(shard, after, limit)

    def read(self, shard: Shard, after: Position) -> Iterator[Placed]:
        """Everything there is after a position. An empty page is not yet the end: Kinesis says how far it is behind."""
        while True:
            page = self.page(shard, after)
            yield from page.placed
            after = page.position
            if page.ended or (not page.placed and page.behind_ms == 0):
                return

    def tip(self, shard: Shard, after: Position) -> Position:
        """A position near the shard's end; one read where nothing is new, two or three where much is."""
        return self._reader.tip(shard, after)

    def ready(self) -> None:
        """Asks at most every READY_S: Kinesis allows few such questions a second, for all of an account together."""
        if time.monotonic() >= self._ready_until_s:
            _wait_active(self._client, within_s=0.0)
            self._ready_until_s = time.monotonic() + READY_S

    def close(self) -> None:
        """Close the connections; calls that wait end at once."""
        self._client.close()


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
            do = "Check that endpoint= in it is a Kinesis server"
            raise Unreachable(f"{client.address.place} gave no sound answer", where=client.address.where, do=do)
        if status in ("ACTIVE", "UPDATING"):
            return
        if time.monotonic() > until_s:
            do = "Wait until `spar stream describe` says ACTIVE"
            raise Missing(f"the stream is {status}", where=client.address.where, do=do)
        client.closed.wait(0.1)
