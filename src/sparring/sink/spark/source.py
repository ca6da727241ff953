"""A stream as a Python Data Source of Spark: one partition for each shard, offsets by position.

The driver plans with a peek at each shard's end; only executors read what lies between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from sparring.sink.spark.offsets import START, Offset, ShardRange, between, pages, planned
from sparring.stream import open_stream
from sparring.stream.protocol import Placed, Position, Stream

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
