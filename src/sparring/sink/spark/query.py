"""The sink as a Structured Streaming query: what the driver does. Spark keeps its place in the checkpoint."""

import os
import re
import sys
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sparring.config import Config
from sparring.errors import SparringError, Unreachable
from sparring.games.catalogue import Catalogue
from sparring.sink.batch_writer import Totals
from sparring.sink.spark.executor import RESULT, ExecutorSettings, write_partition
from sparring.sink.spark.source import NAME, StreamSource

_OURS = re.compile(r"sparring\.errors\.(\w+): ([^\n]+)")
_SLOW = "Python worker failed to connect back"  # within Spark's ten seconds: a machine that has too much to do
_TRACEBACK = "Traceback (most recent call last):"
LOOPBACK = ("127.0.0.1", "localhost")
PACKAGE = str(Path(__file__).parents[2])  # a folder, or the zip that spark-submit was given


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
    frame = spark.readStream.format(NAME).option("url", config.stream.url).option("run", uuid.uuid4().hex).load()
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
