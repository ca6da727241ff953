"""The recorder: a thread that cuts step buffers into chunks and spools them, so that the game's thread never waits."""

import threading
import time
from collections.abc import Callable

from sparring.client.spool import Spool
from sparring.client.statistics import Counters
from sparring.errors import ChunkRefused
from sparring.games.cutter import cut, encoded
from sparring.games.step_buffer import StepBuffer
from sparring.wire.chunk import Chunk
from sparring.wire.ids import EpisodeId

SPOOL_AGAIN_S = 1.0  # a spool that would not take a chunk (disk full) is tried again after this


class Recorder:
    """Owns its thread. Buffers wait here until they are over and spooled; the memory budget bounds them."""

    def __init__(self, spool: Spool, counters: Counters, flush_every_s: float, spooled: Callable[[], None]) -> None:
        self._spool, self._counters, self._every_s, self._spooled = spool, counters, flush_every_s, spooled
        self._buffers: dict[int, tuple[StepBuffer, float]] = {}  # with the time of its last cut
        self._fresh: list[StepBuffer] = []
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._asked, self._answered = 0, 0  # flushes
        self._settled = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="sparring-recorder", daemon=True)
        self._thread.start()

    def watch(self, buffer: StepBuffer) -> None:
        """Take the buffer's steps from now on."""
        self._fresh.append(buffer)

    def wake(self) -> None:
        """A block is full, or a buffer is over."""
        if not self._wake.is_set():
            self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Cut and spool all that can be; whether that was done in time."""
        with self._settled:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            return self._settled.wait_for(lambda: self._answered >= mine, timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Spool what there is and end."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            stopping = self._stopping.is_set()
            with self._settled:
                asked = self._asked
            self._pass(due=stopping or asked > self._answered)
            with self._settled:
                self._answered = asked
                self._settled.notify_all()
            if stopping:
                return
            self._wake.wait(min(self._every_s, 1.0) / 2)
            self._wake.clear()

    def _pass(self, *, due: bool) -> None:
        now_s = time.monotonic()
        while self._fresh:
            buffer = self._fresh.pop(0)
            self._buffers[id(buffer)] = (buffer, now_s)
        cuts = 0
        for name, (buffer, cut_s) in tuple(self._buffers.items()):
            over = buffer.over
            ripe = due or now_s - cut_s >= self._every_s
            chunks = cut(buffer, due=ripe)
            for chunk in chunks:
                self._keep(chunk)
            cuts += len(chunks)
            if over:
                del self._buffers[name]
                self._finish(buffer)
            elif chunks or ripe:
                self._buffers[name] = (buffer, now_s)
        if cuts:
            self._spooled()
        try:
            self._spool.sync(now_s)
        except OSError as error:
            self._counters.warn(f"the spool does not sync: {error}")

    def _keep(self, chunk: Chunk) -> None:
        head = chunk.header
        try:
            part = encoded(chunk)
        except ChunkRefused as error:
            self._counters.add(refused_chunks=1, dropped_steps=head.steps)
            self._counters.warn(f"{head.steps} steps of episode {head.episode} are not sent: {error}")
            return
        if self._spool_patiently(head.episode, head.seat, part):
            self._counters.add(chunks=1, steps=head.steps)
        else:
            self._counters.add(dropped_steps=head.steps)

    def _spool_patiently(self, episode: EpisodeId, seat: int, part: bytes) -> bool:
        """Until the disk takes it. Meanwhile blocks fill the memory budget, and then the game's steps are dropped."""
        while True:
            try:
                return self._spool.add(episode, seat, part)
            except OSError as error:
                self._counters.warn(f"the spool takes nothing: {error}; trying again")
                if self._stopping.wait(SPOOL_AGAIN_S):
                    return False

    def _finish(self, buffer: StepBuffer) -> None:
        episode = buffer.header.episode
        if not any(other.header.episode == episode for other, _ in self._buffers.values()):
            self._spool.closed(episode)
        if buffer.lost:
            self._counters.add(dropped_episodes=1)
            self._counters.warn(f"memory_bytes is used up: the rest of episode {episode} is dropped")
