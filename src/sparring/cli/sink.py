"""Move chunks from the stream into the store, until SIGTERM or Ctrl-C.

The sink checks every chunk as a gateway does, and records refused chunks with their place in the stream. After a kill
the next sink goes on where the stored rows end. With --spark a Spark cluster does the same work; under spark-submit
give `--spark submitted`, which takes the address that spark-submit was given. Example: spar sink --once
"""

import argparse
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output, stopping
from sparring.config import Config
from sparring.errors import ConfigError, SparringError, Unreachable
from sparring.games.catalogue import Catalogue
from sparring.games.chunk_checks import MAX_STATE_BYTES, ChunkRules
from sparring.sink.batch_writer import BatchWriter, Lake
from sparring.sink.process import Checkpoint, ProcessSink, SinkLock, SinkProgress
from sparring.store import open_store
from sparring.stream import open_stream
from sparring.wire.ids import GameId

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from sparring.sink.spark import SparkProgress

SHOW_EVERY_S = 1.0
LOOK_EVERY_S = 0.2
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0  # after a server did not answer
SLOW_BATCH_S = 5.0  # after which Spark's driver asks the servers itself what a batch waits for
REMIND_S = 15.0  # the same complaint again
SUBMITTED = "submitted"  # instead of an address: the one that spark-submit was given


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="end when nothing is left")
    parser.add_argument("--quarantined", action="store_true", help="list refused chunks, with the reasons")
    parser.add_argument("--spark", metavar="URL", help="run on that cluster, such as spark://HOST:7077")
    parser.add_argument("--spark-conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    parser.add_argument("--checkpoint", metavar="URL", help="where Spark keeps its place (default: in the data folder)")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.quarantined:
        return _list_quarantined(args.config, output)
    if not args.config.stream.url:
        do = "Set it, such as kinesis://NAME?region=…"
        raise ConfigError("there is no stream to read", where="[stream] url", do=do)
    with stopping() as stopped:
        return (_run_spark if args.spark else _run_process)(args, stopped, output)


def _run_process(args: argparse.Namespace, stopped: threading.Event, output: Output) -> dict[str, Any]:
    config = args.config
    with ExitStack() as stack:
        checkpoint = Checkpoint(stack.enter_context(SinkLock(Path(config.data) / "sink", config.stream.url)))
        stream = stack.enter_context(open_stream(config.stream.url))
        store = stack.enter_context(open_store(config.store_url, sole_writer=True))
        lake = stack.enter_context(closing(Lake(config.sink.lake_url))) if config.sink.lake_url else None
        limit = max(MAX_STATE_BYTES, config.gateway.state_bytes)
        rules = ChunkRules(Catalogue.from_config(config).games(), config.store.keep_days, state_bytes=limit)
        writer = BatchWriter(rules, store, lambda: int(time.time() * 1000), stopped.wait, lake)
        _announce(config, output)
        display = _Display(output)
        done = ProcessSink(stream, writer, checkpoint).run(
            trigger_s=config.sink.trigger_s,
            once=args.once,
            stop=stopped.wait,
            report=display.progress,
            complain=display.complain,
        )
    output.say(_process_line(done))
    return {"stopped": stopped.is_set(), **asdict(done)}


def _announce(config: Config, output: Output) -> None:
    output.say(f"reading {config.stream.url.partition('?')[0]} into {config.store_url.partition('?')[0]}")


def _list_quarantined(config: Config, output: Output) -> dict[str, Any]:
    games = dict.fromkeys([GameId(""), *(spec.id for spec in Catalogue.from_config(config).games())])
    with open_store(config.store_url) as store:
        rows = [row for game in games for row in store.quarantined(game)]
    cells = [(row.game or "?", row.verdict, row.shard, row.position, row.uploader, row.reason) for row in rows]
    output.table(("game", "verdict", "shard", "position", "uploader", "reason"), cells)
    return {"quarantined": [asdict(row) for row in rows]}


class _Display:
    """A line of progress each second, and each new complaint at once, then now and again."""

    def __init__(self, output: Output) -> None:
        self._output, self._shown_s, self._complaint, self._complained_s = output, 0.0, "", 0.0

    def progress(self, progress: SinkProgress) -> None:
        self._complaint = ""
        if time.monotonic() - self._shown_s >= SHOW_EVERY_S:
            self._shown_s = time.monotonic()
            self._output.progress(_process_line(progress))

    def complain(self, error: SparringError) -> None:
        now = time.monotonic()
        if str(error) != self._complaint or now - self._complained_s >= REMIND_S:
            self._complaint, self._complained_s = str(error), now
            self._output.say(f"waiting: {error}")


def _rates(chunks: int, steps: int, seconds: float) -> str:
    seconds = max(seconds, 1e-9)
    return f"{chunks} chunks ({chunks / seconds:.0f}/s), {steps} steps ({steps / seconds:.0f}/s)"


def _process_line(done: SinkProgress) -> str:
    counts = f"{done.quarantined} quarantined, {done.shards} shards"
    return f"{_rates(done.chunks, done.steps, done.seconds)}, {done.behind_ms / 1000:.1f} s behind, {counts}"


def _spark_line(done: "SparkProgress", begun_s: float) -> str:
    return (
        f"{_rates(done.chunks, done.steps, time.monotonic() - begun_s)}, "
        f"stored {done.lag_ms / 1000:.1f} s after receipt, batch {done.batches} in {done.batch_ms / 1000:.2f} s, "
        f"Spark's trigger {done.trigger_ms / 1000:.2f} s, {done.quarantined} quarantined"
    )


def _run_spark(args: argparse.Namespace, stopped: threading.Event, output: Output) -> dict[str, Any]:
    from sparring.sink.spark import SparkProgress, finished, session, start

    config, done, begun_s = args.config, SparkProgress(), time.monotonic()
    folder = Path(config.data) / "sink"
    with ExitStack() as stack:
        hold = stack.enter_context(SinkLock(folder, config.stream.url))
        # Opened here first, so that a fault is one sentence before the cluster starts any work.
        open_stream(config.stream.url).close()
        open_store(config.store_url).close()
        if config.sink.lake_url:
            Lake(config.sink.lake_url).close()
        conf = dict(_pair(text) for text in args.spark_conf)
        stack.enter_context(output.waits())
        output.wait(f"starting Spark's driver on {args.spark} …")
        spark = session("" if args.spark == SUBMITTED else args.spark, conf)
        stack.callback(spark.stop)
        output.say(f"Spark UI {spark.sparkContext.uiWebUrl}")
        checkpoint = args.checkpoint or str(folder / f"spark-{hold.name}")
        wait_s, display = FIRST_WAIT_S, _Display(output)
        while True:
            before, last = done.batches, -1
            output.wait("starting the query …")
            query = start(spark, config, checkpoint, done)
            _announce(config, output)

            def show(query: "StreamingQuery" = query) -> None:
                nonlocal last
                seen, last = last, finished(query, done, last)
                if last > seen:
                    output.progress(_spark_line(done, begun_s))

            with _slow_batches_shown(query, config, display, output):
                error = _wait_for(query, args.once, stopped, show)
            if error is None:
                break
            display.complain(error)
            wait_s = FIRST_WAIT_S if done.batches > before else min(LONGEST_WAIT_S, 2 * wait_s)
            if stopped.wait(wait_s):
                break
    output.say(_spark_line(done, begun_s))
    return {"stopped": stopped.is_set(), "seconds": time.monotonic() - begun_s, **asdict(done)}


def _wait_for(query: "StreamingQuery", once: bool, stopped: threading.Event, show: Any) -> SparringError | None:
    """Stop the query when asked to or, with `once`, when nothing is left. Returns an error that may pass, or raises."""
    from sparring.sink.spark import failure

    with ThreadPoolExecutor(1, thread_name_prefix="query") as waiting:
        # The call cannot be interrupted, and ends with the query.
        empty = waiting.submit(query.processAllAvailable) if once else None
        try:
            while not stopped.wait(LOOK_EVERY_S) and query.isActive and not (empty and empty.done()):
                show()
            show()
            found = query.exception()
        finally:
            query.stop()
    if found is None:
        return None
    error = failure(found)
    if isinstance(error, Unreachable):
        return error
    raise error


@contextmanager
def _slow_batches_shown(query: "StreamingQuery", config: Config, display: _Display, output: Output) -> Iterator[None]:
    """While the block lasts, say of a batch that takes long which server it waits for: executors try again for minutes
    before Spark says a word."""
    over = threading.Event()

    def watch() -> None:
        last, begun_s = -2, 0.0
        while not over.wait(SLOW_BATCH_S):
            progress, now = query.lastProgress, time.monotonic()
            done = -1 if progress is None else int(progress.batchId)
            if done != last or not query.status["isTriggerActive"]:
                last, begun_s = done, now
            elif (error := _unanswered(config)) is not None:
                display.complain(error)
            else:
                output.progress(f"this batch takes {now - begun_s:.0f} s so far; stream and store answer")

    watching = threading.Thread(target=watch, name="slow-batches")
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _unanswered(config: Config) -> SparringError | None:
    """The sentence of the first server that does not answer."""
    try:
        open_stream(config.stream.url).close()
        open_store(config.store_url).close()
    except SparringError as error:
        return error
    return None


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"{text!r} has no value", where="--spark-conf", do="Write --spark-conf spark.key=value")
    return key, value
