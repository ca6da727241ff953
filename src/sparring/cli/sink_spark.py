"""`spar sink --spark`: the driver of the Spark query, with its lines of progress."""

import argparse
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.errors import ConfigError, SparringError, Unreachable

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from sparring.sink.spark.query import SparkProgress

LOOK_EVERY_S = 0.2
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0  # after a server did not answer
SUBMITTED = "submitted"  # instead of an address: the one that spark-submit was given


def run_spark(args: argparse.Namespace, stopped: threading.Event, output: Output) -> dict[str, Any]:
    from sparring.sink.checkpoint import SinkLock
    from sparring.sink.lake import Lake
    from sparring.sink.spark.query import SparkProgress, session, start
    from sparring.store import open_store
    from sparring.stream import open_stream

    config, done, begun_s = args.config, SparkProgress(), time.monotonic()
    folder = Path(config.data) / "sink"
    with ExitStack() as stack:
        hold = stack.enter_context(SinkLock(folder, config.stream.url))
        # Reached here first, so that what is wrong is one sentence before a cluster is asked for anything.
        open_stream(config.stream.url).close()
        open_store(config.store_url).close()
        if config.sink.lake_url:
            Lake(config.sink.lake_url).close()
        spark = session("" if args.spark == SUBMITTED else args.spark, dict(_pair(text) for text in args.spark_conf))
        stack.callback(spark.stop)
        output.say(f"reading  {config.stream.url.partition('?')[0]} into {config.store_url.partition('?')[0]}")
        output.say(f"Spark UI {spark.sparkContext.uiWebUrl}")
        checkpoint = args.checkpoint or str(folder / f"spark-{hold.name}")
        wait_s = FIRST_WAIT_S
        while True:
            before = done.batches
            query = start(spark, config, checkpoint, done)
            look = _Look(query, done, lambda: output.progress(_line(done, begun_s)))
            error = _ended(query, args.once, stopped.wait, look)
            if error is None:
                break
            output.say(f"waiting: {error}")
            wait_s = FIRST_WAIT_S if done.batches > before else min(LONGEST_WAIT_S, 2 * wait_s)
            if stopped.wait(wait_s):
                break
    output.say(_line(done, begun_s))
    return {"stopped": stopped.is_set(), "seconds": time.monotonic() - begun_s, **asdict(done)}


class _Look:
    """A line for each batch that Spark has finished, when it is looked at."""

    def __init__(self, query: "StreamingQuery", done: "SparkProgress", tell: Callable[[], None]) -> None:
        self._query, self._done, self._tell, self._last = query, done, tell, -1

    def __call__(self) -> None:
        from sparring.sink.spark.query import finished

        last, self._last = self._last, finished(self._query, self._done, self._last)
        if self._last > last:
            self._tell()


def _ended(
    query: "StreamingQuery", once: bool, stop: Callable[[float], bool], look: Callable[[], None]
) -> SparringError | None:
    """Stops the query when it is to stop or has nothing left; None then. What may pass is answered, the rest raised."""
    from sparring.sink.spark.query import failure

    with ThreadPoolExecutor(1, thread_name_prefix="query") as waiting:
        # The call cannot be interrupted, and ends with the query.
        empty = waiting.submit(query.processAllAvailable) if once else None
        try:
            while not stop(LOOK_EVERY_S) and query.isActive and not (empty and empty.done()):
                look()
            look()
            found = query.exception()
        finally:
            query.stop()
    if found is None:
        return None
    error = failure(found)
    if isinstance(error, Unreachable):
        return error
    raise error


def _line(done: "SparkProgress", begun_s: float) -> str:
    seconds = max(time.monotonic() - begun_s, 1e-9)
    return (
        f"{done.chunks} chunks ({done.chunks / seconds:.0f}/s), {done.steps} steps ({done.steps / seconds:.0f}/s), "
        f"stored {done.lag_ms / 1000:.1f} s after receipt, batch {done.batches} in {done.batch_ms / 1000:.2f} s, "
        f"Spark's trigger {done.trigger_ms / 1000:.2f} s, {done.quarantined} quarantined"
    )


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"{text!r} has no value", where="--spark-conf", do="Write --spark-conf spark.key=value")
    return key, value
