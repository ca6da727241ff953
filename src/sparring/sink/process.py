"""The one-process sink: every shard, batch after batch, its place written down when the rows are durable."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparring.errors import SparringError, StoreFailed, Unreachable
from sparring.sink.batch_writer import BatchResult, BatchWriter, count
from sparring.sink.checkpoint import Checkpoint
from sparring.sink.shard_positions import ShardPosition, readable, remembered
from sparring.sink.spark.offsets import PAGE_CHUNKS, read_until
from sparring.store.protocol import Ledger
from sparring.stream.protocol import Page, Position, Shard, Stream

if TYPE_CHECKING:
    from sparring.sink.lake import Lake

READERS = 8  # shards read at once
SHARDS_EVERY_S = 10.0  # how often the list is asked for; a shard that ends asks at once
READ_EVERY_S = 0.2  # a shard answers five reads a second
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # after a server did not answer


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """Since the sink began."""

    seconds: float
    chunks: int
    steps: int
    had: int
    quarantined: int
    behind_ms: int  # the shard that lags most, as the stream says
    shards: int
    batches: int


@dataclass(frozen=True, slots=True)
class _Batch:
    shard: Shard
    after: Position
    page: Page
    again: bool

    @property
    def name(self) -> str:
        return f"{self.shard.id}@{self.after}"


class ProcessSink:
    """Moves batches until it is told to stop, or until nothing is left."""

    def __init__(
        self,
        stream: Stream,
        writer: BatchWriter,
        ledger: Ledger,
        positions: Checkpoint,
        lake: "Lake | None",
    ) -> None:
        self._stream, self._writer, self._ledger = stream, writer, ledger
        self._positions, self._lake = positions, lake
        self._shards: list[Shard] = []
        self._asked_s = -SHARDS_EVERY_S
        self._begun_s = time.monotonic()
        self._sum, self._batches, self._behind_ms = BatchResult(), 0, 0

    def run(
        self,
        *,
        trigger_s: float,
        once: bool,
        stop: Callable[[float], bool],
        tell: Callable[[SinkProgress], None],
        complain: Callable[[SparringError], None],
    ) -> SinkProgress:
        """Go on until `stop(seconds)`, which waits that long, says so; with `once` until the stream is empty.

        A server that does not answer is asked again for as long as it takes: nothing is lost meanwhile.
        """
        wait_s = FIRST_WAIT_S
        with ThreadPoolExecutor(READERS, thread_name_prefix="shard") as readers:
            while True:
                begun_s = time.monotonic()
                try:
                    moved, empty = self._round(readers)
                except (Unreachable, StoreFailed) as error:
                    complain(error)
                    if stop(wait_s):
                        return self.progress()
                    wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
                    continue
                wait_s = FIRST_WAIT_S
                if moved:
                    tell(self.progress())
                if once and empty:
                    return self.progress()
                pause_s = READ_EVERY_S if (moved and self._behind_ms) or once else trigger_s
                if stop(max(0.0, begun_s + pause_s - time.monotonic())):
                    return self.progress()

    def progress(self) -> SinkProgress:
        """What was done so far."""
        done, seconds = self._sum, time.monotonic() - self._begun_s
        return SinkProgress(
            seconds,
            done.chunks,
            done.steps,
            done.had,
            done.quarantined,
            self._behind_ms,
            len(self._shards),
            self._batches,
        )

    def _round(self, readers: ThreadPoolExecutor) -> tuple[bool, bool]:
        """One batch of every readable shard. (whether anything came, whether nothing is left for now)."""
        now_s = time.monotonic()
        if now_s - self._asked_s >= SHARDS_EVERY_S:
            self._shards, self._asked_s = self._stream.shards(), now_s
        positions, begun = self._positions.positions, self._positions.begun
        shards = readable(self._shards, positions)
        batches = list(
            readers.map(lambda shard: self._read(shard, positions.get(shard.id, ShardPosition()), begun), shards)
        )
        self._behind_ms = max((batch.page.behind_ms for batch in batches), default=0)
        full = [batch for batch in batches if batch.page.placed]
        if full:
            self._positions.begin({batch.shard.id: batch.page.position for batch in full})
            for batch in full:
                self._keep(batch)
        ended = [batch for batch in batches if batch.page.ended]
        if full or ended:
            reached = {batch.shard.id: ShardPosition(batch.page.position, batch.page.ended) for batch in batches}
            self._positions.finish(remembered(self._shards, {**positions, **reached}))
        if ended:
            self._asked_s = -SHARDS_EVERY_S  # its children wait
        return bool(full), not full and not ended and not self._behind_ms

    def _read(self, shard: Shard, place: ShardPosition, begun: dict[str, Position]) -> _Batch:
        until = begun.get(shard.id)
        if until is None:
            return _Batch(shard, place.position, self._stream.page(shard, place.position, limit=PAGE_CHUNKS), False)
        return _Batch(shard, place.position, read_until(self._stream, shard, place.position, until), True)

    def _keep(self, batch: _Batch) -> None:
        outcome = self._writer.keep(batch.page.placed, again=batch.again)
        if self._lake is not None:
            self._lake.write(batch.name, outcome.kept)
        count(self._ledger, batch.name, outcome.minutes)
        done = self._sum
        done.chunks += outcome.chunks
        done.steps += outcome.steps
        done.had += outcome.had
        done.quarantined += outcome.quarantined
        self._batches += 1
