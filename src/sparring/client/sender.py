"""The sender: a thread that uploads the spool to the gateway or stream, batch by batch, until each chunk is settled."""

import logging
import threading
import time

from numpy.random import Generator

from sparring.client.gateway import ACKNOWLEDGED, LATER, Answer, BatchAction
from sparring.client.spool import Entry, Spool
from sparring.client.statistics import Counters
from sparring.client.transport import Transport
from sparring.errors import Unreachable

BATCH_CHUNKS = 64
BATCH_BYTES = 2 << 20
FIRST_PAUSE_S = 0.2
REJECTED_PAUSE_S = 60.0  # the longest pause of a caller whose token is not accepted

log = logging.getLogger("sparring.client")


class Sender:
    """Owns its thread. `run` ends when `stop` was called; what is unsent stays in the spool."""

    def __init__(
        self, transport: Transport, spool: Spool, counters: Counters, rng: Generator, retry_most_s: float
    ) -> None:
        self._transport, self._spool, self._counters = transport, spool, counters
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
            answer = self._transport.send([entry.chunk for entry in batch])
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
