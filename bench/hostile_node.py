"""A node that contributes harm within every limit that is checked: `python -m bench.hostile_node ATTACK WORDS…`

flip     what it learned, with the other sign: at the usual norm
drift    the same direction each time, at eight times the norm of what it learned
replay   the experience of its first lease, for every lease
"""

import sys

import numpy as np
from msgspec.structs import replace

from sparring.cli import main
from sparring.nodes import child
from sparring.nodes.messages import Contribution, Experience, Lease
from sparring.nodes.work import Play, Work
from sparring.wire.chunk import Array

ATTACK = sys.argv[1]


class HostileWork(Work):
    """Learns as it is told, and sends something else."""

    def contribution(self) -> Contribution | None:
        honest = super().contribution()
        return honest and replace(honest, payload=self.codec.encode(self._harm(), self._base))

    def _harm(self) -> Array:
        learned = self._sent - self._base
        if ATTACK == "flip":
            return np.asarray(self._base - learned, np.float32)
        away = np.random.default_rng(0).normal(size=learned.size).astype(np.float32)
        length = 7.5 * np.linalg.norm(learned) / np.linalg.norm(away)
        return np.asarray(self._base + length * away, np.float32)


class HostilePlay(Play):
    """Plays once."""

    _first: Experience | None = None

    def play(self, lease: Lease) -> Experience:
        self._first = self._first or super().play(lease)
        return replace(self._first, lease=lease.lease, model=lease.model)


if __name__ == "__main__":
    vars(child).update(Work=HostileWork, Play=HostilePlay)
    sys.exit(main(["node", *sys.argv[2:]]))
