"""The sink as a Spark Structured Streaming query: the stream as a data source, what executors do, and the driver.

The source has one partition for each shard. The driver plans with a look at each shard's end; only executors read what
is between, and judge and store it by the one-process sink's code. An offset is {ID: {"position": …, "ended": …}} for
the shards. Spark keeps its place in the checkpoint.
"""

import itertools
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from sparring.config import Config
from sparring.errors import SparringError, StoreFailed, Unreachable
from sparring.games.catalogue import Catalogue
from sparring.games.chunk_checks import MAX_STATE_BYTES, ChunkRules
from sparring.games.spec import GameSpec
from sparring.sink.batch_writer import BatchResult, BatchWriter, Lake, Totals
from sparring.store import open_store
from sparring.stream import open_stream
from sparring.stream.protocol import Placed, ShardPosition, ShardRange, Stream, pages, readable, still_there

NAME = "sparring"
COLUMNS = pa.schema(
    [
        ("shard", pa.string()),
        ("position", pa.string()),
        ("arrived_ms", pa.int64()),
        ("uploader", pa.string()),
        ("data", pa.binary()),
    ]
)
Offset = dict[str, Any]  # as Spark keeps it, in JSON
SCHEMA = "shard string, position string, arrived_ms long, uploader string, data binary"
RESULT = "chunks long, steps long, had long, quarantined long, lag_ms long"

_OURS = re.compile(r"sparring\.errors\.(\w+): ([^\n]+)")
_SLOW = "Python worker failed to connect back"  # within Spark's ten seconds: a machine that has too much to do
_TRACEBACK = "Traceback (most recent call last):"
LOOPBACK = ("127.0.0.1", "localhost")
PACKAGE = str(Path(__file__).parents[2])  # a folder, or the zip that spark-submit was given


@dataclass
class ShardPartition(InputPartition):
    """What one task reads. Plain fields: it travels from driver to executor."""

    wanted: ShardRange


class StreamSource(DataSource):
    """spark.readStream.format("sparring").option("url", "kinesis://…")"""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> "ShardReader":
        return ShardReader(self.options["url"])


class ShardReader(DataSourceStreamReader):
    """Planned on the driver, read on executors: it holds nothing that cannot travel."""

    def __init__(self, url: str) -> None:
        self.url = url

    def initialOffset(self) -> Offset:
        return {}

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """Near the end of every shard. `limit` is always "all there is": no other one is offered."""
        return planned(opened(self.url), start)

    def partitions(self, start: Offset, end: Offset) -> Sequence[ShardPartition]:
        return [ShardPartition(wanted) for wanted in between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, ShardPartition)
        yield from map(record_batch, pages(opened(self.url), partition.wanted))

    def commit(self, end: Offset) -> None:
        """Nothing to do: a stream forgets by retention alone."""

    def stop(self) -> None:
        """Nothing to do: the process that holds the connections ends with the query."""


def positions_of(offset: Offset) -> dict[str, ShardPosition]:
    """How far each shard was read at an offset."""
    return msgspec.convert(offset, dict[str, ShardPosition])


def planned(stream: Stream, start: Offset) -> Offset:
    """Where a batch from `start` may end now; `start` itself where nothing is new.

    A shard that takes nothing more is planned to its end, and its children one batch later.
    """
    before, shards = positions_of(start), stream.shards()
    reached = dict(before)
    for shard in readable(shards, before):
        at = before.get(shard.id, ShardPosition()).position
        if shard.closed:
            reached[shard.id] = ShardPosition(at, ended=True)
        else:
            tip = stream.tip(shard, at)
            if tip != at:
                reached[shard.id] = ShardPosition(tip)
    if reached == before:
        return start
    found: Offset = msgspec.to_builtins(dict(sorted(still_there(shards, reached).items())))
    return found


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


def record_batch(placed: list[Placed]) -> Any:
    """Placed chunks as rows."""
    return pa.RecordBatch.from_pylist([asdict(one) for one in placed], COLUMNS)


def placed_of(batch: Any) -> list[Placed]:
    """The way back."""
    return [Placed(**row) for row in batch.to_pylist()]


class ExecutorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that an executor must know, as data: it has no file of the machine on which the driver runs."""

    stream_url: str
    store_url: str
    lake_url: str
    keep_days: float
    games: tuple[GameSpec, ...]
    state_bytes: int = MAX_STATE_BYTES


def write_partition(settings: bytes, batch: str, rows: Iterator[Any]) -> Iterator[Any]:
    """Write the rows of one partition, which are one shard's; one row of RESULT, after all of it is durable.

    Counts and files of the lake are named after batch and shard, so a partition that is written again replaces them.
    """
    rows = (some for some in rows if some.num_rows)
    first, done = next(rows, None), BatchResult()
    if first is not None:
        try:
            name = f"{batch}-{first.column('shard')[0].as_py()}"
            done = writer(settings).write(name, map(placed_of, itertools.chain([first], rows)))
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
    rules = ChunkRules(read.games, read.keep_days, state_bytes=read.state_bytes)
    return BatchWriter(rules, store, lambda: int(time.time() * 1000), time.sleep, lake)


@dataclass(slots=True)
class SparkProgress(Totals):
    """Since the driver began. Of the last batch `batch_ms` is our own part, from its rows to its figures, and
    `trigger_ms` all that Spark took for it: planning, its log, our part, and writing down that it is done.
    """

    lag_ms: int = 0  # of the slowest chunk in the last batch, from its receipt to being stored
    batch_ms: int = 0
    trigger_ms: int = 0


def session(master: str, conf: dict[str, str]) -> SparkSession:
    """A session on `master`, or on the one that spark-submit chose where it is "".

    On this machine's own cluster executors find this package and interpreter, and all listen on loopback alone.
    """
    if _near(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of executors; no setting says it within a process
    builder = SparkSession.builder.appName("sparring-sink")
    if master:
        builder = builder.master(master)
    for key, value in {**_defaults(master), **conf}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    # Spark asks the source for its plan in a Python beside the driver that knows nothing of spark-submit's --py-files:
    # this tells it where the package is. On a worker without that folder, --py-files or its own Python has it.
    made.sparkContext.environment.setdefault("PYTHONPATH", PACKAGE)
    made.sparkContext.setLogLevel("ERROR")
    return made


def start(spark: SparkSession, config: Config, checkpoint: str, done: SparkProgress) -> StreamingQuery:
    """Begin to move batches, one each `sink.trigger_s`; each adds itself to `done`."""
    settings = msgspec.json.encode(
        ExecutorSettings(
            stream_url=config.stream.url,
            store_url=config.store_url,
            lake_url=config.sink.lake_url,
            keep_days=config.store.keep_days,
            state_bytes=max(MAX_STATE_BYTES, config.gateway.state_bytes),
            games=tuple(Catalogue.from_config(config).games()),
        )
    )

    def each(frame: DataFrame, number: int) -> None:
        begun_s = time.monotonic()
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        batch = f"spark-{query}-{number}"
        rows = frame.mapInArrow(partial(write_partition, settings, batch), RESULT).collect()
        for row in rows:
            done.add(Totals(0, row.chunks, row.steps, row.had, row.quarantined))
        done.batches += 1
        done.lag_ms = max((row.lag_ms for row in rows), default=0)
        done.batch_ms = round(1000 * (time.monotonic() - begun_s))

    spark.dataSource.register(StreamSource)
    frame = spark.readStream.format(NAME).option("url", config.stream.url).load()
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime=f"{round(config.sink.trigger_s * 1000)} milliseconds").start()


def finished(query: StreamingQuery, done: SparkProgress, last: int) -> int:
    """The number of the batch that Spark finished last, `last` where none is newer; its time is then in `done`."""
    progress = query.lastProgress
    if progress is None or progress.batchId <= last or "addBatch" not in progress.durationMs:  # it looked, and had none
        return last
    done.trigger_ms = progress.durationMs["triggerExecution"]
    return int(progress.batchId)


def _near(master: str) -> bool:
    return master.startswith("local") or urlsplit(master).hostname in LOOPBACK


def _defaults(master: str) -> dict[str, str]:
    conf = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.driver.extraJavaOptions": "-Xss8m",  # without it stopping ends in a StackOverflowError
        "spark.task.maxFailures": "4",
    }
    if _near(master):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": PACKAGE,
        }
    return conf


def failure(error: BaseException) -> SparringError:
    """What a failed query said, out of the many lines that it has: our own sentence where there is one."""
    text = str(error)
    found = _OURS.findall(text)
    if not found:
        # Of a Python traceback what it ends with: the first line that is not indented.
        last = [line for line in text.rpartition(_TRACEBACK)[2].splitlines() if line[:1].strip()]
        lines = last if _TRACEBACK in text else text.splitlines()
        first = next((line.strip() for line in lines if line.strip()), type(error).__name__)
        kind = Unreachable if _SLOW in text else SparringError
        return kind(first[:500].rstrip("."), where="the Spark query", do="See its page and the executors' logs")
    name, sentence = found[-1]
    passing = Unreachable if name in ("Unreachable", "StoreFailed", "StoreRefused") else SparringError
    return passing(sentence.rstrip(". "), where="on Spark", do="Nothing is lost meanwhile")
