"""A board of weights: one learner publishes, any number of actors take the newest whole, and nobody waits.

    publish ─► one slot │ the other ◄─ newest: copied, and its stamp must be the same before and after

A stamp is odd while its slot is written, and grows with every writing. The slot that readers are sent to is never
the one being written, so a reader meets a writer only when two versions appear while it copies; then it begins again.
Past selves have slots of their own, with stamps likewise.
"""

import math
import time
from dataclasses import dataclass

import numpy as np

from sparring.learn.actors.shared_arrays import Layout, SharedArrays, fence
from sparring.learn.actors.wakeup import Wakeup
from sparring.nets.shapes import parameters
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights

NONE = -1  # the version before anything was published
_SLOTS = 2


@dataclass(frozen=True, slots=True)
class WeightsSnapshot:
    """Weights as they were after `version` updates, and how much to explore with them."""

    version: int
    weights: Weights  # a copy
    epsilon: float


class SharedWeights:
    """The writer's and the readers' side. `past` is how many past selves have a place."""

    def __init__(self, network: NetworkSpec, past: int = 0, descriptor: int | None = None) -> None:
        self._shapes = parameters(network)
        size, rows = sum(map(math.prod, self._shapes.values())), _SLOTS + past
        layout: Layout = {
            "newest": ("int64", (2,)),  # how many were published, and the version of the last
            "stamp": ("int64", (rows,)),
            "version": ("int64", (rows,)),
            "epsilon": ("float64", (rows,)),
            "numbers": ("float32", (rows, size)),
        }
        self.block = SharedArrays.create(layout) if descriptor is None else SharedArrays(descriptor, layout)
        arrays = self.block.arrays
        self._newest, self._stamp, self._version = arrays["newest"], arrays["stamp"], arrays["version"]
        self._epsilon, self._numbers = arrays["epsilon"], arrays["numbers"]
        self.past = past

    @property
    def version(self) -> int:
        """The newest that was published; NONE before the first."""
        return int(self._newest[1]) if self._newest[0] else NONE

    def wants(self, version: int) -> bool:
        """Whether that version would be news: showing one costs no more than a copy."""
        return version != self.version

    def publish(self, weights: Weights, version: int, epsilon: float = 0.0) -> None:
        """Show these weights to all. Versions only grow; one writer alone may call this."""
        count = int(self._newest[0]) + 1
        self._write(count % _SLOTS, weights, version, epsilon)
        self._newest[1] = version
        fence()
        self._newest[0] = count

    def remember(self, place: int, weights: Weights, version: int) -> None:
        """Put a past self into one of the places for them."""
        self._write(_SLOTS + place, weights, version, 0.0)

    def newest(self) -> WeightsSnapshot | None:
        """The newest weights, whole; None before the first."""
        while count := int(self._newest[0]):
            found = self._read(count % _SLOTS)
            if found is not None:
                return found[0]
        return None

    def wait_for(self, version: int, bell: Wakeup, timeout_s: float) -> bool:
        """Sleep until that version or a later one is out; False if it is not in time, or whoever publishes is gone."""
        until = time.monotonic() + timeout_s
        while self.version < version:
            left = until - time.monotonic()
            if left <= 0 or bell.gone:
                return False
            bell.wait(left)
        return True

    def news(self, known: dict[int, int]) -> dict[int, Weights]:
        """Past selves by place that are not yet in `known` (place → stamp), which is brought up to date."""
        fresh: dict[int, Weights] = {}
        for place in range(self.past):
            if self._stamp[_SLOTS + place] <= known.get(place, 0):
                continue
            found = self._read(_SLOTS + place)
            if found is not None:
                edition, known[place] = found
                fresh[place] = edition.weights
        return fresh

    def close(self) -> None:
        """Let go of the memory."""
        self.block.close()
        del self._newest, self._stamp, self._version, self._epsilon, self._numbers

    def _write(self, row: int, weights: Weights, version: int, epsilon: float) -> None:
        self._stamp[row] += 1
        fence()
        self._version[row], self._epsilon[row] = version, epsilon
        numbers, start = self._numbers[row], 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            numbers[start : start + size] = weights[name].reshape(-1)
            start += size
        fence()
        self._stamp[row] += 1

    def _read(self, row: int) -> tuple[WeightsSnapshot, int] | None:
        """What a slot holds and its stamp; None where it was written meanwhile."""
        stamp = int(self._stamp[row])
        fence()
        version, epsilon, numbers = int(self._version[row]), float(self._epsilon[row]), self._numbers[row].copy()
        fence()
        if stamp % 2 or int(self._stamp[row]) != stamp:
            return None
        return WeightsSnapshot(version, self._named(numbers), epsilon), stamp

    def _named(self, numbers: Array) -> Weights:
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        parts = np.split(numbers, np.cumsum(sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
