"""From step buffers to the gateway, in two threads, so that the game's own never waits.

The recorder cuts step buffers into chunks and spools them; the sender uploads the spool, batch by batch, until each
chunk is settled: to a gateway over HTTP (`gateway.py`), or, from trusted game servers, into a stream (`StreamUploads`).
"""

import logging
import threading
import time
from collections.abc import Callable

from numpy.random import Generator

from sparring.client.gateway import ACKNOWLEDGED, LATER, Answer, BatchAction, ChunkVerdict, Gateway
from sparring.client.spool import Entry, Spool
from sparring.client.statistics import Counters
from sparring.errors import ChunkRefused, ConfigError, SparringError, StoreFailed, Unreachable, WireError
from sparring.games.cutter import cut, encoded
from sparring.games.step_buffer import StepBuffer
from sparring.stream import open_stream
from sparring.stream.protocol import Stream
from sparring.wire.chunk import Chunk, decode
from sparring.wire.ids import EpisodeId, is_pseudonym

SPOOL_AGAIN_S = 1.0  # a spool that would not take a chunk (disk full) is tried again after this
BATCH_CHUNKS = 64
BATCH_BYTES = 2 << 20
FIRST_PAUSE_S = 0.2
REJECTED_PAUSE_S = 60.0  # the longest pause of a caller whose token is not accepted

log = logging.getLogger("sparring.client")


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


class StreamUploads:
    """Uploads into a stream (kinesis://…). The player must be given as a pseudonym, and the sink makes
    the checks."""

    sample_rate = 1.0  # a stream takes every episode

    def __init__(self, url: str, player: str | None) -> None:
        if player is not None and not is_pseudonym(player):
            do = "Give 32 hex digits, such as an HMAC of the name under a secret of yours; names are never kept"
            raise ConfigError("the player of a stream is a pseudonym", where="sparring.connect(player=…)", do=do)
        self.url = url
        self._stream: Stream | None = None
        try:
            self._opened()
        except Unreachable as error:  # the game starts all the same; the log says if the address is wrong
            log.warning("%s What is recorded waits in the spool", error)

    def send(self, chunks: list[bytes]) -> Answer:
        """Into the stream; each is "taken", or all are to be sent again."""
        results: list[ChunkVerdict] = []
        sound: list[Chunk] = []
        for data in chunks:
            try:
                sound.append(decode(data))
                results.append(ChunkVerdict("taken"))
            except WireError as error:
                results.append(ChunkVerdict("refused", error.wrong))
        try:
            self._opened().append(sound)
        except (Unreachable, StoreFailed) as error:
            return Answer(BatchAction.RETRY, reason=str(error).rstrip("."))
        except SparringError as error:  # a stream or a permission that was there when it was opened
            return Answer(BatchAction.REJECTED_CALLER, reason=str(error).rstrip("."))
        return Answer(BatchAction.PER_CHUNK, tuple(results))

    def now_ms(self) -> int:
        """This machine's clock: a stream tells no time."""
        return int(time.time() * 1000)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _opened(self) -> Stream:
        if self._stream is None:
            self._stream = open_stream(self.url, setting="sparring.connect")
        return self._stream


Uploads = Gateway | StreamUploads


class Sender:
    """Owns its thread. `run` ends when `stop` was called; what is unsent stays in the spool."""

    def __init__(self, uploads: Uploads, spool: Spool, counters: Counters, rng: Generator, retry_most_s: float) -> None:
        self._uploads, self._spool, self._counters = uploads, spool, counters
        self._rng, self._most_s = rng, retry_most_s
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._failures, self._most_chunks = 0, BATCH_CHUNKS
        self._hurried = False
        self.gone = False  # the player was erased: nothing more is recorded
        self._thread = threading.Thread(target=self._run, name="sparring-sender", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something to send."""
        self._wake.set()

    def hurry(self) -> None:
        """Try at once, whatever the pause: a caller waits, or the token was renewed."""
        self._failures = min(self._failures, 1)
        self._hurried = True
        self._wake.set()

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                pause = self._once()
            except OSError as error:
                pause = self._failed(f"the spool does not read: {error}")
            if pause is None:
                self._wake.wait()
            elif pause > 0:
                self._rest(pause)

    def _rest(self, pause: float) -> None:
        """Wait, unless stopped or hurried; new chunks alone do not cut a pause short."""
        until_s = time.monotonic() + pause
        while not self._stopping.is_set() and not self._hurried and (left_s := until_s - time.monotonic()) > 0:
            self._wake.wait(left_s)
            self._wake.clear()
        self._hurried = False

    def _once(self) -> float | None:
        """Send one batch; seconds to wait before the next, None for "until there is something"."""
        batch = self._spool.batch(self._most_chunks, BATCH_BYTES)
        if not batch:
            return None
        self._counters.add(tries=1)
        try:
            answer = self._uploads.send([entry.chunk for entry in batch])
        except Unreachable as error:
            return self._failed(error.wrong)
        except RuntimeError:
            if self._stopping.is_set():  # close() closed the HTTP client during the request
                return None
            raise
        return self._act_on(answer, batch)

    def _act_on(self, answer: Answer, batch: list[Entry]) -> float | None:
        match answer.action:
            case BatchAction.PER_CHUNK:
                return self._settle(answer, batch)
            case BatchAction.RETRY:
                return self._failed(answer.reason, answer.retry_after_s)
            case BatchAction.REJECTED_CALLER:
                self._failures += 1
                self._counters.warn(f"{answer.reason}; what is recorded stays in the spool")
                return pause_s(self._failures + 3, self._rng, REJECTED_PAUSE_S, answer.retry_after_s)
            case BatchAction.PLAYER_ERASED:
                self._forget_player(answer.reason)
                return None
            case BatchAction.HALVE if len(batch) > 1:
                self._most_chunks = max(1, len(batch) // 2)
                return 0.0
            case BatchAction.HALVE:
                self._refuse(batch[0], answer.reason)
                self._most_chunks = BATCH_CHUNKS
                return 0.0

    def _settle(self, answer: Answer, batch: list[Entry]) -> float:
        later = 0
        for entry, result in zip(batch, answer.results, strict=True):
            if result.verdict in ACKNOWLEDGED:
                self._spool.settle(entry)
                self._counters.add(**{"had_chunks" if result.verdict == "had" else "new_chunks": 1})
            elif result.verdict in LATER:
                later += 1
            elif result.verdict == "gone" and result.field == "episode":  # with another player of it, or a bot's seat
                self._spool.settle(entry)
                self._counters.add(erased_chunks=1)
            elif result.verdict == "gone":
                self._forget_player(result.reason)
                return 0.0
            else:
                self._refuse(entry, f"{result.verdict}: {result.reason} ({result.field} {result.value})")
        if later:
            return self._failed(f"{later} chunks are to be sent again: {answer.reason}", answer.retry_after_s)
        if self._failures:
            log.info("the gateway answers again")
        self._failures, self._most_chunks = 0, min(BATCH_CHUNKS, self._most_chunks * 2)
        return 0.0

    def _refuse(self, entry: Entry, reason: str) -> None:
        self._counters.add(refused_chunks=1)
        self._counters.warn(f"the gateway refused a chunk of {entry.name}: {reason}; it is set aside")
        self._spool.set_aside(entry, reason)

    def _forget_player(self, reason: str) -> None:
        self.gone = True
        erased = self._spool.clear()
        self._counters.add(erased_chunks=erased)
        self._counters.warn(
            f"the player was erased ({reason}): {erased} spooled chunks are removed, nothing more is recorded"
        )

    def _failed(self, reason: str, retry_after_s: float | None = None) -> float:
        self._failures += 1
        self._counters.add(failed_tries=1)
        pause = pause_s(self._failures, self._rng, self._most_s, retry_after_s)
        if self._failures == 1:
            self._counters.warn(f"{reason}; what is recorded waits in the spool")
        else:
            log.debug("try %d failed: %s; next in %.1f s", self._failures, reason, pause)
            self._counters.note_problem(reason)
        return pause


def pause_s(failures: int, rng: Generator, most_s: float, retry_after_s: float | None = None) -> float:
    """Seconds before the next try after `failures` in a row.

    Uniform between 0 and FIRST_PAUSE_S · 2^(failures - 1), capped; so a thousand clients that lost one gateway come
    back spread out in time. A server's Retry-After is a floor, with up to a tenth more for the same reason.
    """
    cap = min(most_s, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
    if retry_after_s is not None:
        return retry_after_s * (1.0 + 0.1 * float(rng.random()))
    return cap * float(rng.random())
