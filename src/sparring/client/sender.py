"""The sender: a thread that carries the spool to gateway or stream, batch by batch, until each chunk is settled."""

import logging
import threading
import time

from numpy.random import Generator

from sparring.client.backoff import pause_s
from sparring.client.spool import Entry, Spool
from sparring.client.statistics import Counters
from sparring.client.transport import Transport
from sparring.client.upload_answer import KEPT, LATER, Answer, Fate
from sparring.errors import Unreachable

BATCH_CHUNKS = 64
BATCH_BYTES = 2 << 20
CLOSED_MOST_S = 60.0  # a caller who is not let in tries this seldom at most

log = logging.getLogger("sparring.client")


class Sender:
    """Owns its thread. `run` ends when `stop` was called; what is unsent stays in the spool."""

    def __init__(self, way: Transport, spool: Spool, counters: Counters, rng: Generator, retry_most_s: float) -> None:
        self._way, self._spool, self._counters = way, spool, counters
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
        """Try at once, whatever the pause: somebody waits, or the token was renewed."""
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
            answer = self._way.send([entry.chunk for entry in batch])
        except Unreachable as error:
            return self._failed(error.wrong)
        except RuntimeError:
            if self._stopping.is_set():  # close() let go of the HTTP client in mid-request
                return None
            raise
        return self._act_on(answer, batch)

    def _act_on(self, answer: Answer, batch: list[Entry]) -> float | None:
        match answer.fate:
            case Fate.JUDGED:
                return self._judged(answer, batch)
            case Fate.AGAIN:
                return self._failed(answer.reason, answer.retry_after_s)
            case Fate.CLOSED:
                self._failures += 1
                self._tell(f"{answer.reason}; what is recorded stays in the spool")
                return pause_s(self._failures + 3, self._rng, CLOSED_MOST_S, answer.retry_after_s)
            case Fate.GONE:
                self._forget_player(answer.reason)
                return None
            case Fate.HALVE if len(batch) > 1:
                self._most_chunks = max(1, len(batch) // 2)
                return 0.0
            case Fate.HALVE:
                self._refuse(batch[0], answer.reason)
                self._most_chunks = BATCH_CHUNKS
                return 0.0

    def _judged(self, answer: Answer, batch: list[Entry]) -> float:
        later = 0
        for entry, result in zip(batch, answer.results, strict=True):
            if result.verdict in KEPT:
                self._spool.settle(entry)
                self._counters.add(**{"had_chunks" if result.verdict == "had" else "new_chunks": 1})
            elif result.verdict in LATER:
                later += 1
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
        self._tell(f"the gateway refused a chunk of {entry.name}: {reason}; it is set aside")
        self._spool.set_aside(entry, reason)

    def _forget_player(self, reason: str) -> None:
        self.gone = True
        erased = self._spool.clear()
        self._counters.add(erased_chunks=erased)
        self._tell(f"the player was erased ({reason}): {erased} spooled chunks are removed, nothing more is recorded")

    def _failed(self, reason: str, retry_after_s: float | None = None) -> float:
        self._failures += 1
        self._counters.add(failed_tries=1)
        pause = pause_s(self._failures, self._rng, self._most_s, retry_after_s)
        if self._failures == 1:
            self._tell(f"{reason}; what is recorded waits in the spool")
        else:
            log.debug("try %d failed: %s; next in %.1f s", self._failures, reason, pause)
            self._counters.say(reason)
        return pause

    def _tell(self, text: str) -> None:
        self._counters.say(text)
        log.warning("%s", text)
