"""How weights reach actors. One learner writes; any number of actors read the newest version, whole.

    SharedWeights   actors on this machine: shared memory, whose descriptor their processes inherit
    TopicWeights    actors that a host runs: the topics "weights/main" and "weights/past" (services/topics.py on
                    local://, hosts/ray/topics.py on Ray), read by version (TopicWeightsReader)

SharedWeights has two rows for the newest weights, so that readers never copy from the row that is being written:

    publish ─► one row │ the other ◄─ newest: copied, and its stamp must be the same before and after

A stamp is odd while its row is written, and grows with every write. A reader meets the writer only when two versions
appear while it copies; then it copies again. Each past self has a row of its own, with a stamp likewise.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.learn.actors.shared_memory import Layout, SharedArrays, fence
from sparring.nets.shapes import parameters
from sparring.wire.network import NetworkSpec, Weights

NONE = -1  # the version before anything was published
TOPIC, PAST_TOPIC = "weights/main", "weights/past"
ARRIVAL_S = 30.0  # that a published version may take to an actor
_ROWS = 2


@dataclass(frozen=True, slots=True)
class WeightsSnapshot:
    """Weights as they were after `version` updates, and how much to explore with them."""

    version: int
    weights: Weights
    epsilon: float
    past_version: int = NONE  # of the past selves that were published before it; topics only


class SharedWeights:
    """Both sides: the process that creates it writes, those that inherit the descriptor read."""

    def __init__(self, network: NetworkSpec, past: int = 0, descriptor: int | None = None) -> None:
        self._shapes = parameters(network)
        size, rows = sum(map(math.prod, self._shapes.values())), _ROWS + past
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
        self._past, self._seen_stamps = past, [0] * past

    @property
    def version(self) -> int:
        """The newest that was published; NONE before the first."""
        return int(self._newest[1]) if self._newest[0] else NONE

    def wants(self, version: int) -> bool:
        """Whether that version is worth publishing now."""
        return version != self.version

    def publish(self, weights: Weights, version: int, epsilon: float = 0.0) -> None:
        """Versions only grow; one process alone may call this."""
        count = int(self._newest[0]) + 1
        self._write(count % _ROWS, weights, version, epsilon)
        self._newest[1] = version
        fence()
        self._newest[0] = count

    def put_past_self(self, place: int, weights: Weights) -> None:
        self._write(_ROWS + place, weights, 0, 0.0)

    def newest(self) -> WeightsSnapshot | None:
        """The newest weights, copied; None before the first."""
        while count := int(self._newest[0]):
            if (found := self._read(count % _ROWS)) is not None:
                return found[0]
        return None

    def new_past_selves(self, snapshot: WeightsSnapshot) -> dict[int, Weights]:
        """By place, those that this reader has not been given yet."""
        fresh: dict[int, Weights] = {}
        for place in range(self._past):
            if self._stamp[_ROWS + place] > self._seen_stamps[place] and (found := self._read(_ROWS + place)):
                past_self, self._seen_stamps[place] = found
                fresh[place] = past_self.weights
        return fresh

    def close(self) -> None:
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
        """What a row holds and its stamp; None where it was written meanwhile."""
        stamp = int(self._stamp[row])
        fence()
        version, epsilon, numbers = int(self._version[row]), float(self._epsilon[row]), self._numbers[row].copy()
        fence()
        if stamp % 2 or int(self._stamp[row]) != stamp:
            return None
        parts = np.split(numbers, np.cumsum([math.prod(shape) for shape in self._shapes.values()])[:-1])
        named = {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
        return WeightsSnapshot(version, named, epsilon), stamp


class TopicWeights:
    """The learner's side of the topics, found by `discovery`: that of the host whose services read them."""

    def __init__(self, discovery: str, past: int, every_s: float) -> None:
        """At most one version every `every_s`: where blocks are small, updates are many for each."""
        from sparring.services.discovery import open_discovery  # runs on one machine need no sockets
        from sparring.services.solver import Solver

        self.version, self._every_s, self._published_s = NONE, every_s, 0.0
        self._discovery = open_discovery(discovery)
        self._solver = Solver(self._discovery)
        self._main = self._solver.publisher(TOPIC)
        self._past = self._solver.publisher(PAST_TOPIC) if past else None
        self._past_selves: list[Weights] = []
        self._stamps: list[int] = []  # by place: with which version of the topic it was put there
        self._past_version = NONE

    def wants(self, version: int) -> bool:
        if self.version == NONE:
            return True
        return version != self.version and time.monotonic() - self._published_s >= self._every_s

    def publish(self, weights: Weights, version: int, epsilon: float = 0.0) -> None:
        value = {"weights": weights, "epsilon": epsilon, "past_version": self._past_version}
        self._main.publish(value, version)
        self.version, self._published_s = version, time.monotonic()

    def put_past_self(self, place: int, weights: Weights) -> None:
        assert self._past is not None
        self._past_version += 1
        self._past_selves[place : place + 1] = [weights]
        self._stamps[place : place + 1] = [self._past_version]
        self._past.publish({"weights": self._past_selves, "stamps": self._stamps}, self._past_version)

    def close(self) -> None:
        self._main.close()
        if self._past is not None:
            self._past.close()
        self._solver.close()
        self._discovery.close()


class TopicWeightsReader:
    """The actor's side, inside a service: its host says in SPARRING_DISCOVERY where topics are found."""

    def __init__(self) -> None:
        from sparring.services.solver import Solver

        self._solver = Solver()
        self._main, self._past = self._solver.subscribe(TOPIC), self._solver.subscribe(PAST_TOPIC)
        self._seen = NONE  # version of the past selves

    def at_least(self, version: int) -> WeightsSnapshot:
        """That version or a later one, waited for; arrays are views that cannot be written."""
        value: Mapping[str, Any] = self._main.at_least(version, ARRIVAL_S)
        epsilon, past_version = float(value["epsilon"]), int(value["past_version"])
        return WeightsSnapshot(self._main.version, value["weights"], epsilon, past_version)

    def new_past_selves(self, snapshot: WeightsSnapshot) -> dict[int, Weights]:
        """By place, those that came since the last snapshot."""
        if snapshot.past_version <= self._seen:
            return {}
        value, seen = self._past.at_least(snapshot.past_version, ARRIVAL_S), self._seen
        self._seen = self._past.version
        stamped = enumerate(zip(value["stamps"], value["weights"], strict=True))
        return {place: weights for place, (stamp, weights) in stamped if stamp > seen}

    def close(self) -> None:
        self._main.close()
        self._past.close()
        self._solver.close()
