"""What executors do with a partition: judge and store it by the code of the one-process sink, and say what they did."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from sparring.errors import StoreFailed
from sparring.games.spec import GameSpec
from sparring.sink.batch_writer import BatchWriter
from sparring.sink.chunk_judge import ChunkJudge
from sparring.sink.lake import Lake
from sparring.sink.minute_counts import Minutes, Tally
from sparring.sink.spark.source import placed_of
from sparring.store import open_store
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId

RESULT = "summary binary"
_RESULT = pa.schema([("summary", pa.binary())])


class ExecutorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that an executor must know, as data: it has no file of the machine on which the driver runs."""

    stream_url: str
    store_url: str
    lake_url: str
    keep_days: float
    games: tuple[GameSpec, ...]


class Counted(msgspec.Struct, frozen=True):
    """A tally on its way to the driver."""

    game: GameId
    minute_ms: int
    tally: Tally


class Summary(msgspec.Struct, frozen=True):
    """What became of a partition, or of a whole batch."""

    chunks: int = 0
    steps: int = 0
    had: int = 0
    quarantined: int = 0
    minutes: tuple[Counted, ...] = ()


@dataclass(slots=True)
class _Sum:
    chunks: int = 0
    steps: int = 0
    had: int = 0
    quarantined: int = 0
    minutes: Minutes = field(default_factory=Minutes)
    lake: list[Chunk] = field(default_factory=list)


def write_partition(settings: bytes, batch: str, rows: Iterator[Any]) -> Iterator[Any]:
    """Store the rows of one partition; one row that holds a Summary. Nothing is yielded before all is durable."""
    try:
        done = _kept(*_opened(settings), batch, rows)
    except StoreFailed:
        _opened.cache_clear()  # after some failures a store takes nothing more until it is opened anew
        raise
    yield pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(_summary(done))], pa.binary())], schema=_RESULT)


def _kept(writer: BatchWriter, lake: Lake | None, batch: str, rows: Iterator[Any]) -> _Sum:
    task = TaskContext.get()
    retried = task is not None and task.attemptNumber() > 0
    done = _Sum()
    for some in rows:
        placed = placed_of(some)
        if not placed:
            continue
        again = retried or bool(some.column("again")[0].as_py())
        outcome = writer.keep(placed, again=again)
        done.chunks += outcome.chunks
        done.steps += outcome.steps
        done.had += outcome.had
        done.quarantined += outcome.quarantined
        done.minutes.merge(outcome.minutes)
        if lake is not None:
            done.lake += outcome.kept
    if lake is not None and done.lake:
        part = 0 if task is None else task.partitionId()
        lake.write(f"{batch}-{part}", done.lake)
    return done


def merged(rows: list[bytes]) -> tuple[Summary, Minutes]:
    """What all partitions of a batch did together."""
    sums, minutes = _Sum(), Minutes()
    for row in rows:
        one = msgspec.json.decode(row, type=Summary)
        sums.chunks += one.chunks
        sums.steps += one.steps
        sums.had += one.had
        sums.quarantined += one.quarantined
        minutes.merge((counted.game, counted.minute_ms, counted.tally) for counted in one.minutes)
    sums.minutes = minutes
    return _summary(sums), minutes


def _summary(done: _Sum) -> Summary:
    counted = tuple(Counted(game, minute_ms, tally) for game, minute_ms, tally in done.minutes)
    return Summary(done.chunks, done.steps, done.had, done.quarantined, counted)


@cache
def _opened(settings: bytes) -> tuple[BatchWriter, Lake | None]:
    """Opened once for each process of Spark's, which runs many tasks: a session with Cassandra takes half a second."""
    said = msgspec.json.decode(settings, type=ExecutorSettings)
    store = open_store(said.store_url, sole_writer=True)
    lake = Lake(said.lake_url) if said.lake_url else None
    judge = ChunkJudge(said.games, said.keep_days)
    return BatchWriter(judge, store, store, lambda: int(time.time() * 1000), time.sleep), lake
