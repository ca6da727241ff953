"""A node that contributes harm within every limit that is checked: `python -m bench.hostile_node ATTACK WORDS…`

flip     what it learned, with the other sign: at the usual norm
drift    the same direction each time, at eight times the norm of what it learned
"""

import sys

import numpy as np

from sparring.cli import main
from sparring.nodes import child
from sparring.nodes.messages import Contribution
from sparring.nodes.work import Work
from sparring.wire.chunk import Array

ATTACK = sys.argv[1]


class HostileWork(Work):
    """Learns as it is told, and sends something else."""

    def contribution(self) -> Contribution | None:
        honest = self.weights.read
        try:
            self.weights.read = lambda: self._harm(honest())  # type: ignore[method-assign]
            return super().contribution()
        finally:
            self.weights.read = honest  # type: ignore[method-assign]

    def _harm(self, weights: Array) -> Array:
        learned = weights - self._base
        if ATTACK == "flip":
            return np.asarray(self._base - learned, np.float32)
        away = np.random.default_rng(0).normal(size=learned.size).astype(np.float32)
        length = 7.5 * np.linalg.norm(learned) / np.linalg.norm(away)
        return np.asarray(self._base + length * away, np.float32)


if __name__ == "__main__":
    child.Work = HostileWork  # type: ignore[misc]
    sys.exit(main(["node", *sys.argv[2:]]))
