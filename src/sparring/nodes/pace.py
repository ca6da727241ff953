"""How long a round waits, by how long nodes usually take from the weights that they get to their next contribution.

A node that stops answering costs the others one wait, which should not be much longer than a usual one; a node that is
slower than most contributes when it can, and no round waits for it.
"""

import statistics
from collections import deque

KNOWN = 16  # contributions after which it is known what is usual
KEEPS_PACE, LEAST_PACE_S = 1.5, 0.1  # times the usual, and what is never too slow
PATIENCE, LEAST_PATIENCE_S = 2.0, 1.0


class Pace:
    """Of all nodes of a parent."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=64)

    def note(self, took_s: float) -> bool:
        """A contribution took so long; whether rounds wait for a node that does."""
        self._took.append(took_s)
        return took_s <= max(LEAST_PACE_S, KEEPS_PACE * self._usual_s())

    def patience_s(self, most_s: float) -> float:
        """How long a round waits after its first contribution, `most_s` at most."""
        return min(most_s, max(LEAST_PATIENCE_S, PATIENCE * self._usual_s()))

    def _usual_s(self) -> float:
        return statistics.median(self._took) if len(self._took) >= KNOWN else float("inf")
