"""Stragglers: how long a round waits for nodes, by how long they usually take from new weights to their contribution.

A node that stops answering costs the others one wait, little longer than a usual one. A node that is slower than most
contributes when it can: no round waits for it.
"""

import statistics
from collections import deque

KNOWN = 16  # response times from which the usual one is known
STRAGGLES, LEAST_STRAGGLE_S = 1.5, 0.1  # slower than so many times the usual; nobody straggles below so many seconds
PATIENCE, LEAST_PATIENCE_S = 2.0, 1.0  # a round waits so many times the usual, and at least so many seconds


class ResponseTimes:
    """Of the nodes of one parent, the last ones."""

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
