"""The one-process sink: every shard, batch after batch; it writes its position down when the rows are durable."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparring.errors import SparringError, StoreFailed, Unreachable
from sparring.sink.batch_writer import BatchWriter, Totals
from sparring.sink.checkpoint import Checkpoint
from sparring.stream.protocol import Page, Position, Shard, Stream
from sparring.stream.shards import PAGE_CHUNKS, ShardPosition, ended, read_until, readable, still_there

READERS = 8  # shards read at once
SHARDS_EVERY_S = 10.0  # how often the list is asked for; a shard that ends asks at once
READ_EVERY_S = 0.2  # a shard answers five reads a second
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # after a server did not answer


@dataclass(slots=True)
class SinkProgress(Totals):
    """Since the sink began."""

    seconds: float = 0.0
    behind_ms: int = 0  # the shard that lags most, as the stream says
    shards: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    shard: Shard
    after: Position
    page: Page
    again: bool


class ProcessSink:
    """Moves batches until `stop` says so, or until nothing is left."""

    def __init__(self, stream: Stream, writer: BatchWriter, checkpoint: Checkpoint) -> None:
        self._stream, self._writer, self._checkpoint = stream, writer, checkpoint
        self._shards: list[Shard] = []
        self._listed_s = -SHARDS_EVERY_S
        self._begun_s, self._done = time.monotonic(), SinkProgress()

    def run(
        self,
        *,
        trigger_s: float,
        once: bool,
        stop: Callable[[float], bool],
        report: Callable[[SinkProgress], None],
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
                    report(self.progress())
                if once and empty:
                    return self.progress()
                pause_s = READ_EVERY_S if (moved and self._done.behind_ms) or once else trigger_s
                if stop(max(0.0, begun_s + pause_s - time.monotonic())):
                    return self.progress()

    def progress(self) -> SinkProgress:
        """What was done so far."""
        self._done.seconds, self._done.shards = time.monotonic() - self._begun_s, len(self._shards)
        return self._done

    def _round(self, readers: ThreadPoolExecutor) -> tuple[bool, bool]:
        """One batch of every readable shard. (whether anything came, whether nothing is left for now)."""
        now_s = time.monotonic()
        if now_s - self._listed_s >= SHARDS_EVERY_S:
            self._shards, self._listed_s = self._stream.shards(), now_s
        positions = self._checkpoint.positions
        batches = list(readers.map(self._read, readable(self._shards, ended(positions))))
        self._done.behind_ms = max((batch.page.behind_ms for batch in batches), default=0)
        full, at_end = [one for one in batches if one.page.placed], any(one.page.ended for one in batches)
        if full:
            self._checkpoint.begin({batch.shard.id: batch.page.position for batch in full})
            for batch in full:
                name = f"{batch.shard.id}@{batch.after}"
                self._done.add(self._writer.write(name, [(batch.page.placed, batch.again)]))
        if full or at_end:
            reached = {batch.shard.id: ShardPosition(batch.page.position, batch.page.ended) for batch in batches}
            self._checkpoint.finish(still_there(self._shards, {**positions, **reached}))
        if at_end:
            self._listed_s = -SHARDS_EVERY_S  # its children wait
        return bool(full), not full and not at_end and not self._done.behind_ms

    def _read(self, shard: Shard) -> _Batch:
        """The next batch of a shard, or once more the one that a killed sink began, with the same end."""
        after = self._checkpoint.positions.get(shard.id, ShardPosition()).position
        until = self._checkpoint.begun.get(shard.id)
        if until is None:
            return _Batch(shard, after, self._stream.page(shard, after, limit=PAGE_CHUNKS), again=False)
        return _Batch(shard, after, read_until(self._stream, shard, after, until), again=True)
