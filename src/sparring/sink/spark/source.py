"""A stream as a Python Data Source of Spark: one partition for each shard, offsets by position.

The driver plans with a look at each shard's end; only executors read what is between. An offset is
{"run": …, "shards": {ID: {"position": …, "ended": …}}}. `run` names the driver that planned up to there: a batch that
another driver reads than the one that planned it is read again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from sparring.stream import open_stream
from sparring.stream.protocol import Placed, Position, Stream
from sparring.stream.shards import ShardPosition, ShardRange, ended, pages, readable, still_there

NAME = "sparring"
COLUMNS = pa.schema(
    [
        ("shard", pa.string()),
        ("position", pa.string()),
        ("arrived_ms", pa.int64()),
        ("uploader", pa.string()),
        ("data", pa.binary()),
        ("again", pa.bool_()),  # the batch was planned by a driver that is gone, and may be stored in part
    ]
)
Offset = dict[str, Any]  # as Spark keeps it, in JSON
START: Offset = {"run": "", "shards": {}}
SCHEMA = "shard string, position string, arrived_ms long, uploader string, data binary, again boolean"


@dataclass
class ShardPartition(InputPartition):
    """What one task reads. Plain fields: it travels from driver to executor."""

    wanted: ShardRange
    run: str


class StreamSource(DataSource):
    """spark.readStream.format("sparring").option("url", "kinesis://…").option("run", …)"""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> "ShardReader":
        return ShardReader(self.options["url"], self.options["run"])


class ShardReader(DataSourceStreamReader):
    """Planned on the driver, read on executors: it holds nothing that cannot travel."""

    def __init__(self, url: str, run: str) -> None:
        self.url, self.run = url, run

    def initialOffset(self) -> Offset:
        return START

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """Near the end of every shard. `limit` is always "all there is": no other one is offered."""
        return planned(opened(self.url), start, self.run)

    def partitions(self, start: Offset, end: Offset) -> Sequence[ShardPartition]:
        return [ShardPartition(wanted, end["run"]) for wanted in between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ShardPartition)
        again = partition.run != self.run
        for placed in pages(opened(self.url), partition.wanted):
            yield record_batch(placed, again)

    def commit(self, end: Offset) -> None:
        """Nothing to do: a stream forgets by retention alone."""

    def stop(self) -> None:
        """Nothing to do: the process that holds the connections ends with the query."""


def positions_of(offset: Offset) -> dict[str, ShardPosition]:
    """How far each shard was read at an offset."""
    return {name: ShardPosition(Position(one["position"]), one["ended"]) for name, one in offset["shards"].items()}


def planned(stream: Stream, start: Offset, run: str) -> Offset:
    """Where a batch from `start` may end now; `start` itself where nothing is new.

    A shard that takes nothing more is planned to its end, and its children one batch later.
    """
    before, shards = positions_of(start), stream.shards()
    reached = dict(before)
    for shard in readable(shards, ended(before)):
        at = before.get(shard.id, ShardPosition()).position
        if shard.closed:
            reached[shard.id] = ShardPosition(at, ended=True)
        else:
            tip = stream.tip(shard, at)
            if tip != at:
                reached[shard.id] = ShardPosition(tip)
    if reached == before:
        return start
    kept = still_there(shards, reached)
    return {
        "run": run,
        "shards": {name: {"position": at.position, "ended": at.ended} for name, at in sorted(kept.items())},
    }


def between(start: Offset, end: Offset) -> list[ShardRange]:
    """One range for each shard that has something between two offsets."""
    before, after = positions_of(start), positions_of(end)
    found = []
    for name, at in after.items():
        begun = before.get(name, ShardPosition())
        if begun.ended or begun == at:
            continue
        found.append(ShardRange(name, begun.position, None if at.ended else at.position))
    return found


@cache
def opened(url: str) -> Stream:
    """The stream, opened once for each process of Spark's: it runs many tasks, and none of them may close it."""
    return open_stream(url)


def record_batch(placed: list[Placed], again: bool) -> Any:
    """Placed chunks as rows."""
    columns = [
        [one.shard for one in placed],
        [one.position for one in placed],
        [one.arrived_ms for one in placed],
        [one.uploader for one in placed],
        [one.data for one in placed],
        [again] * len(placed),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def placed_of(batch: Any) -> list[Placed]:
    """The way back."""
    columns = [batch.column(field.name).to_pylist() for field in COLUMNS][:5]
    rows = zip(*columns, strict=True)
    return [Placed(shard, Position(at), arrived, uploader, data) for shard, at, arrived, uploader, data in rows]
