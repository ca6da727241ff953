"""Rounds: contributions that are merged together, and how long a round waits for those that are missing.

A round closes when every awaited node contributed, or when it is late, with those that did. A node is awaited from its
first contribution on, unless it straggles: one that stops answering costs the others one wait, little longer than a
usual one, and one that is slower than most contributes when it can.
"""

import asyncio
import logging
import statistics
import threading
from collections import deque
from collections.abc import Callable

from sparring.nodes.merge_rules import Merger

log = logging.getLogger(__name__)

KNOWN = 16  # response times from which the usual one is known
STRAGGLES, LEAST_STRAGGLE_S = 1.5, 0.1  # times the usual response time; shorter ones than this never straggle
PATIENCE, LEAST_PATIENCE_S = 2.0, 1.0  # a round waits so many times the usual, and at least so many seconds


class ResponseTimes:
    """Of the nodes of one parent, the last ones: from the weights that a node gets to its contribution."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=64)

    def straggles(self, seconds: float) -> bool:
        """Add the response time of a contribution; whether it is a straggler's."""
        self._seconds.append(seconds)
        return seconds > max(LEAST_STRAGGLE_S, STRAGGLES * self._usual_s())

    def patience_s(self, most_s: float) -> float:
        """How long a round waits after its first contribution, `most_s` at most."""
        return min(most_s, max(LEAST_PATIENCE_S, PATIENCE * self._usual_s()))

    def _usual_s(self) -> float:
        return statistics.median(self._seconds) if len(self._seconds) >= KNOWN else float("inf")


class Rounds:
    """The rounds of one parent, called from one event loop. `lock` guards the merger; `merged` is called after it."""

    def __init__(self, merger: Merger, lock: threading.Lock, longest_s: float, merged: Callable[[], None]) -> None:
        self._merger, self._lock, self._merged = merger, lock, merged
        self.longest_s = longest_s  # that a round waits
        self._times = ResponseTimes()
        self._nodes: set[str] = set()
        self._awaited: set[str] = set()
        self._closed = asyncio.Event()  # of the round that is open now
        self._late: asyncio.TimerHandle | None = None
        self._told_too_few = 0  # contributions, of the last round that waited for more

    def join(self, node: str) -> None:
        """A node connected, maybe again."""
        self._nodes.add(node)
        self._awaited.discard(node)

    def leave(self, node: str) -> None:
        """A node is gone, and no round waits for it."""
        self._nodes.discard(node)
        self.skip(node)
        self.close()

    def skip(self, node: str) -> None:
        """A node has nothing to contribute now: no round waits for it until it contributes."""
        self._awaited.discard(node)

    def responded(self, node: str, seconds: float) -> None:
        """A node contributes so many seconds after it got its weights: rounds wait for it, unless it straggles."""
        if self._times.straggles(seconds):
            self._awaited.discard(node)
        else:
            self._awaited.add(node)

    async def wait(self) -> None:
        """Return when the round in which a contribution was just offered is merged."""
        if not self.close():
            if self._late is None:
                self._wait_for_others(self._times.patience_s(self.longest_s))
            await self._closed.wait()

    def close(self, *, late: bool = False, forced: bool = False) -> bool:
        """Merge the round if it is complete, or as it is if it is `late`; whether it was merged. `forced`: whoever
        waits goes on anyhow."""
        with self._lock:
            merged = self._merger.close_round(self._awaited, late=late)
        if merged or forced:
            if self._late is not None:
                self._late.cancel()
                self._late = None
            self._closed.set()
            self._closed = asyncio.Event()
            self._merged()
        return merged

    def _wait_for_others(self, seconds: float) -> None:
        self._late = asyncio.get_running_loop().call_later(seconds, self._is_late)

    def _is_late(self) -> None:
        self._late = None
        contributed = self._merger.contributors()
        if self.close(late=True):
            self._awaited = contributed & self._nodes
        elif contributed:  # too few for the rule
            if self._told_too_few != len(contributed):
                self._told_too_few = len(contributed)
                rule = self._merger.rule
                log.warning(f"{rule} merges {rule.quorum} nodes or more, and {len(contributed)} contributed: it waits")
            self._wait_for_others(self.longest_s)
