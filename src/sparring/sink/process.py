"""The one-process sink: every shard, batch after batch; it writes its position down when the rows are durable.

Its checkpoint is a file of the data folder: {"format": 1, "shards": {ID: {"position": …, "ended": …, "until": …}}}.
`until` is written before a batch is, and gone after it: a sink that was killed between the two reads that batch
again with the same end, so that what is named after its two ends (figures, files of the lake) is written again, not
beside it.
A lock beside it is held by one sink at a time.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from sparring.durable import replace_file
from sparring.errors import SparringError, StoreFailed, Unreachable
from sparring.sink.batch_writer import BatchWriter, Totals
from sparring.stream.protocol import (
    Page,
    Position,
    Shard,
    ShardPosition,
    ShardRange,
    Stream,
    pages,
    readable,
    still_there,
)

FORMAT = 1  # of the checkpoint
READERS = 8  # shards read at once
SHARDS_EVERY_S = 10.0  # how often the list is asked for; a shard that ends asks at once
READ_EVERY_S = 0.2  # a shard answers five reads a second
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # after a server did not answer


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    shards: dict[str, ShardPosition]


class SinkLock:
    """A context manager: one sink at a time reads a stream into a data folder, until it ends or dies."""

    def __init__(self, folder: Path, stream_url: str) -> None:
        self.folder, self.name = folder, _name(stream_url)

    def __enter__(self) -> Self:
        path = self.folder / f"{self.name}.lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreFailed(f"it cannot be opened: {error}", where=str(path), do="Make the folder writable") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            wrong = "another sink reads this stream into this data folder"
            raise StoreFailed(wrong, where=str(path), do="Stop that one first") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)  # which lets go of it


class Checkpoint:
    """The file. Only the process that holds the lock writes it."""

    def __init__(self, lock: SinkLock) -> None:
        """Reads it; StoreFailed where it is there and does not read."""
        # The lock is on another file: this one is replaced by a new one with every batch.
        self.path = lock.folder / f"{lock.name}.json"
        self.positions: dict[str, ShardPosition] = {}
        try:
            said = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            do = "Remove it: the stream is then read from its beginning, and nothing is stored twice"
            raise StoreFailed(f"it does not read: {error}", where=str(self.path), do=do) from None
        if said.format != FORMAT:
            do = "Use the Sparring that wrote it, or a newer one"
            raise StoreFailed(f"it has format {said.format}", where=str(self.path), do=do)
        self.positions = said.shards

    def begin(self, ends: Mapping[str, Position]) -> None:
        """Write down where the next batch of each shard will end; on disk on return."""
        held = {**dict.fromkeys(ends, ShardPosition()), **self.positions}
        self._write({name: msgspec.structs.replace(at, until=ends.get(name)) for name, at in held.items()})

    def finish(self, positions: Mapping[str, ShardPosition]) -> None:
        """Everything before `positions` is stored; on disk on return."""
        self._write(positions)

    def _write(self, positions: Mapping[str, ShardPosition]) -> None:
        self.positions = dict(sorted(positions.items()))
        try:
            replace_file(self.path, msgspec.json.encode(_File(FORMAT, self.positions)))
        except OSError as error:
            raise StoreFailed(f"it cannot be written: {error}", where=str(self.path), do="Make room there") from None


def _name(url: str) -> str:
    """One name for one stream: options that do not say which stream it is may change."""
    parts, options = urlsplit(url), parse_qs(urlsplit(url).query)
    which = (parts.scheme, parts.netloc, parts.path, options.get("region"), options.get("endpoint"))
    plain = "".join(char if char.isalnum() or char in "-_" else "-" for char in parts.netloc)[:60]
    return f"{plain or 'stream'}-{hashlib.sha256(repr(which).encode()).hexdigest()[:8]}"


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
        batches = list(readers.map(self._read, readable(self._shards, positions)))
        self._done.behind_ms = max((batch.page.behind_ms for batch in batches), default=0)
        full, at_end = [one for one in batches if one.page.placed], any(one.page.ended for one in batches)
        if full:
            self._checkpoint.begin({batch.shard.id: batch.page.position for batch in full})
            for batch in full:
                name = f"{batch.shard.id}@{batch.after}-{batch.page.position}"
                self._done.add(self._writer.write(name, [batch.page.placed]))
        if full or at_end:
            reached = {batch.shard.id: ShardPosition(batch.page.position, batch.page.ended) for batch in batches}
            self._checkpoint.finish(still_there(self._shards, {**positions, **reached}))
        if at_end:
            self._listed_s = -SHARDS_EVERY_S  # its children wait
        return bool(full), not full and not at_end and not self._done.behind_ms

    def _read(self, shard: Shard) -> _Batch:
        """The next batch of a shard, or once more the one that a killed sink began, with the same end."""
        at = self._checkpoint.positions.get(shard.id, ShardPosition())
        if at.until is None:
            return _Batch(shard, at.position, self._stream.page(shard, at.position))
        placed = [one for some in pages(self._stream, ShardRange(shard.id, at.position, at.until)) for one in some]
        reached = placed[-1].position if placed else at.position
        return _Batch(shard, at.position, Page(placed, reached, ended=False, behind_ms=0))
