"""hogwild: workers that play and learn by themselves, on parameters that they share without a lock.

    worker: games ─► rollout ─► gradient ─┐           ┌─ θ and its statistics, in shared memory
    worker: games ─► rollout ─► gradient ─┼─ θ += … ─►│
    worker: games ─► rollout ─► gradient ─┘  ◄── θ ───┘  ◄── this process: counts, checkpoints, models

Experience stays where it was played. A worker that dies is restarted and the others do not notice; what it had learned
is in θ. No worker plays between two iterations, so that checkpoint and metrics are of one moment.
"""

import json
import socket
import time
from typing import Any

import numpy as np

from sparring.acting.actor import Episodes
from sparring.errors import ConfigError, TrainingStopped
from sparring.learn.actors.process_pool import ProcessPool, ProcessSpec, StartRequest
from sparring.learn.actors.shared_memory import SharedArrays
from sparring.learn.plan import Plan
from sparring.learn.protocol import Batch, Iteration, Sources, Topology, Update
from sparring.learn.topologies.hogwild_worker import BUSY, EPISODES, STEPS, TICKS, UPDATES, SharedLearner, layout
from sparring.store.protocol import Store
from sparring.wire.tree import Tree, unpack

WORKER = "sparring.learn.topologies.hogwild_worker"
ITERATION_S = 0.1  # at most
PAUSE_S = 30.0  # a rollout and its gradient take no longer
_LENGTH = 4  # bytes before a report


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner whose parameters lie in shared memory, and workers that begin with the first iteration."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    if not isinstance(learner, SharedLearner) or plan.algorithm.feeds != "trajectories":
        raise ConfigError(
            f"{plan.algo} does not learn in memory that several workers change",
            where="--topology hogwild",
            do="Use a3c, or another topology",
        )
    memory = SharedArrays.create(layout(learner.numbers.shape, plan.actors))
    memory.arrays["numbers"][:] = learner.numbers
    learner.share(memory.arrays["numbers"])
    return _Hogwild(plan, learner, memory)


class _Reports:
    """What one worker sends: trees, each after its length."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._received = bytearray()

    def read(self) -> list[Tree]:
        """Those that have come since the last time."""
        try:
            while data := self._ours.recv(1 << 16):
                self._received += data
        except (BlockingIOError, ConnectionError):
            pass
        reports = []
        while len(self._received) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._received[:_LENGTH], "little")
            if len(self._received) < end:
                break
            reports.append(unpack(bytes(self._received[_LENGTH:end])))
            del self._received[:end]
        return reports

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()


class _Hogwild:
    """Lets the workers run for one iteration at a time, and reads their reports."""

    def __init__(self, plan: Plan, learner: SharedLearner, memory: SharedArrays) -> None:
        self.plan, self.learner, self._memory = plan, learner, memory
        self._rows, self._go = memory.arrays["rows"], memory.arrays["go"]
        self._before = np.zeros(5, np.int64)  # counted before the run was resumed
        self._reports: dict[int, _Reports] = {}
        self.pool: ProcessPool | None = None

    @property
    def env_steps(self) -> int:
        return self._count(TICKS)

    @property
    def position(self) -> int:
        return self._count(TICKS)

    @property
    def episodes(self) -> int:
        return self._count(EPISODES)

    def sources(self) -> Sources:
        return Sources({"selfplay": self._count(STEPS)}, None)

    def iterate(self) -> Iteration:
        """Let the workers play and learn until one of them reports."""
        if self.pool is None:
            self.pool = ProcessPool(self.plan.actors, self._launch)
        self._go[0] = 1
        until, reports = time.monotonic() + ITERATION_S, self._read()
        while not reports and (left := until - time.monotonic()) > 0:
            try:
                self.pool.wait(left)
            finally:
                reports = self._read()  # also the last report of a worker that died
        self._go[0] = 0
        self.learner.pull()
        self.learner.updates, self.learner.steps = self._count(UPDATES), self._count(STEPS)
        return self._joined(reports)

    def save(self) -> Tree:
        self._pause()  # and no pull: the weights that the last iteration ended with are those that are published
        self.learner.updates, self.learner.steps = self._count(UPDATES), self._count(STEPS)
        return {"learner": self.learner.save(), "counted": self._before + self._rows.sum(axis=0)}

    def load(self, state: Tree) -> None:
        """Before the first iteration, so no worker changes the numbers. Games and past selves start again."""
        self.learner.load(state["learner"])
        self._before = state["counted"].copy()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        for reports in self._reports.values():
            reports.close()
        self._memory.close()

    def _count(self, column: int) -> int:
        return int(self._before[column] + self._rows[:, column].sum())

    def _read(self) -> list[Tree]:
        return [report for reports in self._reports.values() for report in reports.read()]

    def _joined(self, reports: list[Tree]) -> Iteration:
        for report in reports:
            if "failed" in report:
                wrong, where, do = report["failed"]
                raise TrainingStopped(wrong, where=where, do=do)
            if "batch" in report:
                return Iteration(Update(self.learner, None, report["metrics"]), Batch(**report["batch"]), None, {})
        assert self.pool is not None
        flow = {"restarts": float(self.pool.restarts)}
        if not reports:
            return Iteration(None, None, None, flow)
        metrics = {name: float(np.mean([one["metrics"][name] for one in reports])) for name in reports[0]["metrics"]}
        columns = (np.concatenate([one[name] for one in reports]) for name in ("returns", "against_others"))
        return Iteration(Update(self.learner, None, metrics), None, Episodes(*columns), flow)

    def _launch(self, request: StartRequest) -> ProcessSpec:
        """What a dead worker had not yet reported is lost; what it learned is not."""
        row = request.actor
        if (old := self._reports.pop(row, None)) is not None:
            old.close()
        reports = self._reports[row] = _Reports()
        self._rows[row, BUSY] = 0
        spec: dict[str, Any] = {
            "game": self.plan.game,
            "seed": self.plan.seed,
            "plan": self.plan.record(),
            "memory": self._memory.descriptor,
            "reports": reports.theirs.fileno(),
            "wakeup": request.bell,
            "row": row,
            "generation": request.generation,
            "learned": int(self._before[STEPS]),
        }
        return ProcessSpec(json.dumps(spec).encode(), (self._memory.descriptor, reports.theirs.fileno()), WORKER)

    def _pause(self) -> None:
        """Wait until no worker is in the middle of a rollout."""
        until = time.monotonic() + PAUSE_S
        while self.pool is not None and self._rows[:, BUSY].any() and time.monotonic() < until:
            self.pool.tend()
            time.sleep(0.002)
