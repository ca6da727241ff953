"""Move what lies in the stream into the store, until SIGTERM or Ctrl-C.

Every chunk is judged as a gateway would; what is wrong with one is written down with its place in the stream. Killed at
any moment, the next sink goes on where the rows end. With --spark the same work is done by a Spark cluster.
"""

import argparse
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.cli.stop_signal import stopping
from sparring.errors import ConfigError, SparringError

if TYPE_CHECKING:
    from sparring.config import Config
    from sparring.sink.lake import Lake
    from sparring.sink.process import SinkProgress

TELL_EVERY_S = 1.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="end when nothing is left")
    parser.add_argument("--quarantined", action="store_true", help="list what was put aside, and why")
    parser.add_argument("--spark", metavar="URL", help="on that cluster, such as spark://HOST:7077")
    parser.add_argument("--spark-conf", action="append", default=[], metavar="KEY=VALUE", help="one of Spark's own")
    parser.add_argument("--checkpoint", metavar="URL", help="where Spark keeps its place (default: in the data folder)")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.quarantined:
        return _list_quarantined(args.config, output)
    if not args.config.stream.url:
        raise ConfigError(
            "there is no stream to read", where="[stream] url", do="Set it, such as kinesis://NAME?region=…"
        )
    with stopping() as stopped:
        if args.spark:
            from sparring.cli.sink_spark import run_spark

            return run_spark(args, stopped, output)
        return _drain(args.config, args.once, stopped, output)


def _drain(config: "Config", once: bool, stopped: threading.Event, output: Output) -> dict[str, Any]:
    from sparring.games.catalogue import Catalogue
    from sparring.sink.batch_writer import BatchWriter
    from sparring.sink.checkpoint import Checkpoint, SinkLock
    from sparring.sink.chunk_judge import ChunkJudge
    from sparring.sink.process import ProcessSink
    from sparring.store import open_store
    from sparring.stream import open_stream

    with ExitStack() as stack:
        checkpoint = Checkpoint(stack.enter_context(SinkLock(Path(config.data) / "sink", config.stream.url)))
        stream = stack.enter_context(open_stream(config.stream.url))
        store = stack.enter_context(open_store(config.store_url, sole_writer=True))
        lake = stack.enter_context(_lake(config.sink.lake_url)) if config.sink.lake_url else None
        judge = ChunkJudge(Catalogue.from_config(config).games(), config.store.keep_days)
        writer = BatchWriter(judge, store, lambda: int(time.time() * 1000), stopped.wait, lake)
        output.say(f"reading {config.stream.url.partition('?')[0]} into {config.store_url.partition('?')[0]}")
        teller = _Teller(output)
        done = ProcessSink(stream, writer, checkpoint).run(
            trigger_s=config.sink.trigger_s,
            once=once,
            stop=stopped.wait,
            report=teller.tell,
            complain=teller.complain,
        )
    output.say(line(done))
    return {"stopped": stopped.is_set(), **asdict(done)}


def _lake(url: str) -> "Lake":
    from sparring.sink.lake import Lake  # and with it pyarrow, which only a lake needs

    return Lake(url)


def _list_quarantined(config: "Config", output: Output) -> dict[str, Any]:
    from sparring.games.catalogue import Catalogue
    from sparring.store import open_store
    from sparring.wire.ids import GameId

    games = dict.fromkeys([GameId(""), *(spec.id for spec in Catalogue.from_config(config).games())])
    with open_store(config.store_url) as store:
        rows = [row for game in games for row in store.quarantined(game)]
    cells = [(row.game or "?", row.verdict, row.shard, row.position, row.uploader, row.reason) for row in rows]
    output.table(("game", "verdict", "shard", "position", "uploader", "reason"), cells)
    return {"quarantined": [asdict(row) for row in rows]}


class _Teller:
    """A line of progress each second, and each new complaint once."""

    def __init__(self, output: Output) -> None:
        self._output, self._told_s, self._complaint = output, 0.0, ""

    def tell(self, progress: "SinkProgress") -> None:
        self._complaint = ""
        if time.monotonic() - self._told_s >= TELL_EVERY_S:
            self._told_s = time.monotonic()
            self._output.progress(line(progress))

    def complain(self, error: SparringError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            self._output.say(f"waiting: {error}")


def line(done: "SinkProgress") -> str:
    """One line of progress."""
    rate = max(done.seconds, 1e-9)
    return (
        f"{done.chunks} chunks ({done.chunks / rate:.0f}/s), {done.steps} steps ({done.steps / rate:.0f}/s), "
        f"{done.behind_ms / 1000:.1f} s behind, {done.quarantined} quarantined, {done.shards} shards"
    )
