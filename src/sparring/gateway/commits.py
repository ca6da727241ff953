"""Group commit: what waits is gathered into one append, and each caller is answered after it is kept.

One thread writes. The queue holds a bounded number of chunks; beyond it callers are sent away.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparring.errors import SparringError
from sparring.gateway.http_errors import ServerBusy
from sparring.gateway.intake import Intake
from sparring.store.protocol import AppendResult
from sparring.wire.chunk import Chunk

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    chunks: Sequence[Chunk]
    answer: "asyncio.Future[list[AppendResult]]"
    since_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Flow:
    """What waits and what was done."""

    waiting_chunks: int
    capacity_chunks: int
    oldest_s: float
    commits: int
    committed_chunks: int


class Commits:
    """Between the event loop and the store, or the stream. `submit` is called on the loop, and only there."""

    def __init__(self, intake: Intake, *, queue_chunks: int, group_chunks: int) -> None:
        self._intake, self._capacity, self._group = intake, queue_chunks, group_chunks
        self._queue: deque[_Waiting] = deque()  # bounded by the count of its chunks, in `submit`
        self._chunks = self.commits = self.committed_chunks = 0
        self._wake = threading.Condition()
        self._closed = False
        self._writer = threading.Thread(target=self._write, name="commits", daemon=False)
        self._writer.start()

    async def submit(self, chunks: Sequence[Chunk]) -> list[AppendResult]:
        """The verdict on each chunk, once it is durable; ServerBusy or StoreFailed otherwise."""
        waiting = _Waiting(chunks, asyncio.get_running_loop().create_future())
        with self._wake:
            if self._closed:
                raise ServerBusy("the server is stopping", where="gateway", do="Send it again later")
            if self._chunks + len(chunks) > self._capacity and self._chunks:
                raise ServerBusy(
                    f"{self._chunks} chunks wait to be written",
                    where="gateway",
                    do="Send it again later",
                    field="queue",
                    value=self._chunks,
                    limit=self._capacity,
                )
            self._queue.append(waiting)
            self._chunks += len(chunks)
            self._wake.notify()
        return await waiting.answer

    def flow(self) -> Flow:
        """For /metrics."""
        with self._wake:
            oldest = time.monotonic() - self._queue[0].since_s if self._queue else 0.0
            return Flow(self._chunks, self._capacity, oldest, self.commits, self.committed_chunks)

    def close(self, hurry_after_s: float | None = None, hurry: Callable[[], None] | None = None) -> None:
        """Write what was accepted, then end the thread; `hurry` is called where that takes longer."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._writer.join(hurry_after_s)
        if self._writer.is_alive() and hurry is not None:
            hurry()
        self._writer.join()

    def _write(self) -> None:
        while group := self._next():
            chunks = [chunk for waiting in group for chunk in waiting.chunks]
            try:
                kept: list[AppendResult] | SparringError = self._intake.append(chunks)
                self.commits += 1
                self.committed_chunks += len(chunks)
            except SparringError as error:
                log.error("nothing of %d chunks was kept: %s", len(chunks), error)
                kept = error
            except BaseException:  # a bug: the callers must not wait for ever, and the process must show it
                log.exception("the writer failed")
                kept = ServerBusy("the writer failed", where="gateway", do="Send it again later")
            try:
                group[0].answer.get_loop().call_soon_threadsafe(_tell, group, kept)
            except RuntimeError:  # the loop is closed: nobody is left to be told
                log.warning("%d uploads were kept after their callers had gone", len(group))
            del group, chunks  # or they would take memory until the next ones come

    def _next(self) -> list[_Waiting]:
        """Everything that waits, up to the group's size; empty when closed and done."""
        with self._wake:
            while not self._queue and not self._closed:
                self._wake.wait()
            group: list[_Waiting] = []
            count = 0
            while self._queue and (not group or count + len(self._queue[0].chunks) <= self._group):
                count += len(self._queue[0].chunks)
                group.append(self._queue.popleft())
            self._chunks -= count
            return group


def _tell(group: list[_Waiting], kept: list[AppendResult] | SparringError) -> None:
    at = 0
    for waiting in group:
        if waiting.answer.done():  # its caller was cancelled
            at += len(waiting.chunks)
        elif isinstance(kept, SparringError):
            waiting.answer.set_exception(kept)
        else:
            waiting.answer.set_result(kept[at : at + len(waiting.chunks)])
            at += len(waiting.chunks)
