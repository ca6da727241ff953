"""What executors do with a partition: the one-process sink's code judges and stores it, and they say what they did."""

import itertools
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from sparring.errors import StoreFailed
from sparring.games.spec import GameSpec
from sparring.sink.batch_writer import BatchResult, BatchWriter
from sparring.sink.chunk_judge import ChunkJudge
from sparring.sink.lake import Lake
from sparring.sink.spark.source import placed_of
from sparring.store import open_store

RESULT = "chunks long, steps long, had long, quarantined long, lag_ms long"


class ExecutorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that an executor must know, as data: it has no file of the machine on which the driver runs."""

    stream_url: str
    store_url: str
    lake_url: str
    keep_days: float
    games: tuple[GameSpec, ...]


def write_partition(settings: bytes, batch: str, rows: Iterator[Any]) -> Iterator[Any]:
    """Write the rows of one partition, which are one shard's; one row of RESULT, after all of it is durable.

    Counts and files of the lake are named after batch and shard, so a partition that is written again replaces them.
    """
    rows = (some for some in rows if some.num_rows)
    first, done = next(rows, None), BatchResult()
    if first is not None:
        task = TaskContext.get()
        retried = task is not None and task.attemptNumber() > 0
        pages = ((placed_of(one), retried or one.column("again")[0].as_py()) for one in itertools.chain([first], rows))
        try:
            done = writer(settings).write(f"{batch}-{first.column('shard')[0].as_py()}", pages)
        except StoreFailed:
            writer.cache_clear()  # after some failures a store takes nothing more until it is opened again
            raise
    counts = {"chunks": done.chunks, "steps": done.steps, "had": done.had, "quarantined": done.quarantined}
    yield pa.RecordBatch.from_pylist([{**counts, "lag_ms": done.lag_ms}])


@cache
def writer(settings: bytes) -> BatchWriter:
    """Opened once in each of Spark's processes, which run many tasks: a session with Cassandra takes half a second."""
    read = msgspec.json.decode(settings, type=ExecutorSettings)
    store = open_store(read.store_url, sole_writer=True)
    lake = Lake(read.lake_url) if read.lake_url else None
    judge = ChunkJudge(read.games, read.keep_days)
    return BatchWriter(judge, store, lambda: int(time.time() * 1000), time.sleep, lake)
