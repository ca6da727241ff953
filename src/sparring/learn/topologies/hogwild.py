"""hogwild: workers that play and learn by themselves, on parameters that they share without a lock.

    worker: games ─► rollout ─► gradient ─┐           ┌─ θ and its statistics, in shared memory
    worker: games ─► rollout ─► gradient ─┼─ θ += … ─►│
    worker: games ─► rollout ─► gradient ─┘  ◄── θ ───┘  ◄── this process: counts, checkpoints, models

Experience stays where it was played. A worker that dies is restarted and the others do not notice; what it had learned
is in θ. No worker plays between two iterations, so that checkpoint and metrics are of one moment.

A worker is `python -m sparring.learn.topologies.hogwild`, what it is told as a line of JSON on standard input. It
reports returns and metrics on an inherited pipe, and ends with its standard input.
"""

import json
import math
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from sparring.acting.actor import Episodes
from sparring.config import Config
from sparring.errors import ConfigError, SparringError, TrainingStopped
from sparring.learn.actors.experience import joined_episodes
from sparring.learn.actors.process_pool import ProcessPool
from sparring.learn.actors.shared_memory import Layout, SharedArrays, Wakeup
from sparring.learn.algorithms.learner import ActorCritic
from sparring.learn.optim import Rmsprop
from sparring.learn.plan import Plan, from_record
from sparring.learn.protocol import Batch, Iteration, Sources, Topology, Update
from sparring.learn.topologies import single
from sparring.learn.topologies.sync import SyncLoop
from sparring.nets.module_network import ModuleNetwork
from sparring.processes.parent_watch import end_with_parent, first_line, read_lines
from sparring.store.protocol import Store
from sparring.user_code import told_as_users
from sparring.wire.tree import Tree, pack, unpack

WORKER = "sparring.learn.topologies.hogwild"
ITERATION_S = 0.1  # at most
SETTLE_S = 30.0  # a rollout and its gradient take no longer
REPORT_S = 0.05  # between two reports
PAUSE_S = 0.002  # between two looks whether workers may go on
TICKS, EPISODES, UPDATES, STEPS, BUSY = range(5)  # of a row


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner whose parameters lie in shared memory, and workers that begin with the first iteration."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    if not isinstance(learner, ActorCritic) or not isinstance(learner.optimiser, Rmsprop):
        using = getattr(plan.settings, "optimiser", "its own optimiser")
        raise ConfigError(
            f"{plan.algo} with {using} does not learn in memory that several workers change",
            where="--topology hogwild",
            do="Use a3c with its own rmsprop (options alpha and eps), or --topology single",
        )
    if isinstance(learner.net, ModuleNetwork) and learner.net.moving:
        wrong = f"its {learner.net.moving[0]!r} changes as it learns, and workers share parameters alone"
        do = "Use LayerNorm, or --topology single"
        raise ConfigError(wrong, where=f"network {plan.settings.network!r}", do=do)
    numbers = learner.optimiser.numbers
    memory = SharedArrays.create(layout(numbers.shape, plan.actors))
    memory.arrays["numbers"][:] = numbers
    learner.optimiser.share(memory.arrays["numbers"])
    return _Hogwild(plan, learner, memory)


def layout(numbers: tuple[int, ...], workers: int) -> Layout:
    """What is shared: parameters and their statistics, a row of counters for each worker, and whether to go on."""
    return {"numbers": ("float32", numbers), "rows": ("int64", (workers, 5)), "go": ("int64", (1,))}


class _Hogwild:
    """Lets the workers run for one iteration at a time, and reads their reports."""

    def __init__(self, plan: Plan, learner: ActorCritic, memory: SharedArrays) -> None:
        self.plan, self.learner, self._memory = plan, learner, memory
        self._rows, self._go = memory.arrays["rows"], memory.arrays["go"]
        self._before = np.zeros(5, np.int64)  # counted before the run was resumed
        self._reports: dict[int, Connection] = {}
        self._theirs: list[Connection] = []  # the other ends, which are closed once a worker has them
        self.pool = ProcessPool(self._launch, WORKER)

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
        if not len(self.pool):
            self.pool.resize(self.plan.actors)
        self._go[0] = 1
        until, reports = time.monotonic() + ITERATION_S, self._read()
        while not reports and (left := until - time.monotonic()) > 0:
            try:
                self.pool.wait(left)
            finally:
                reports = self._read()  # also the last report of a worker that died
        self._go[0] = 0
        self.learner.optimiser.pull()
        self.learner.updates = self._count(UPDATES)
        return self._joined(reports)

    def save(self) -> Tree:
        self._pause()  # and no pull: the weights that the last iteration ended with are those that are published
        self.learner.updates = self._count(UPDATES)
        return {"learner": self.learner.save(), "counted": self._before + self._rows.sum(axis=0)}

    def load(self, state: Tree) -> None:
        """Before the first iteration, so no worker changes the numbers. Games and past selves start again."""
        self.learner.load(state["learner"])
        self._before = state["counted"].copy()

    def close(self) -> None:
        self.pool.close()
        for reports in self._reports.values():
            reports.close()
        self._memory.close()

    def _count(self, column: int) -> int:
        return int(self._before[column] + self._rows[:, column].sum())

    def _read(self) -> list[Tree]:
        while self._theirs:
            self._theirs.pop().close()
        found = []
        for reports in self._reports.values():
            with suppress(EOFError, OSError):  # the worker is gone
                while reports.poll():
                    found.append(unpack(reports.recv_bytes()))
        return found

    def _joined(self, reports: list[Tree]) -> Iteration:
        for report in reports:
            if "failed" in report:
                wrong, where, do = report["failed"]
                raise TrainingStopped(wrong, where=where, do=do)
            if "batch" in report:
                return Iteration(Update(self.learner, None, report["metrics"]), Batch(**report["batch"]), None, {})
        flow = {"restarts": float(self.pool.restarts)}
        if not reports:
            return Iteration(None, None, None, flow)
        metrics = _mean([report["metrics"] for report in reports])
        ended = joined_episodes(Episodes(**report["episodes"]) for report in reports)
        return Iteration(Update(self.learner, None, metrics), None, ended, flow)

    def _launch(self, row: int, generation: int, bell: int) -> tuple[bytes, tuple[int, ...]]:
        """What a dead worker had not yet reported is lost; what it learned is not."""
        if (old := self._reports.pop(row, None)) is not None:
            old.close()
        self._reports[row], theirs = Pipe(duplex=False)
        self._theirs.append(theirs)
        self._rows[row, BUSY] = 0
        spec: dict[str, Any] = {
            "game": self.plan.game,
            "seed": self.plan.seed,
            "plan": self.plan.record(),
            "memory": self._memory.descriptor,
            "reports": theirs.fileno(),
            "wakeup": bell,
            "row": row,
            "generation": generation,
            "ticks": int(self._before[TICKS]),
        }
        return json.dumps(spec).encode(), (self._memory.descriptor, theirs.fileno())

    def _pause(self) -> None:
        """Wait until no worker is in the middle of a rollout."""
        until = time.monotonic() + SETTLE_S
        while self._rows[:, BUSY].any() and time.monotonic() < until:
            self.pool.tend()
            time.sleep(PAUSE_S)


class Worker:
    """One worker. It alone writes its row of counters; all workers write the shared numbers."""

    def __init__(self, plan: Plan, spec: Mapping[str, Any], reports: Connection) -> None:
        own = np.random.SeedSequence([plan.seed, spec["row"], spec["generation"]]).generate_state(1)[0]
        topology = single.build(replace(plan, seed=int(own)), None)
        assert isinstance(topology, SyncLoop)
        self.topology, learner = topology, topology.learner
        assert isinstance(learner, ActorCritic)  # `build` has asked
        self.learner = learner
        memory = SharedArrays(spec["memory"], layout(learner.optimiser.numbers.shape, plan.actors))
        learner.optimiser.share(memory.arrays["numbers"])
        self.rows, self.go = memory.arrays["rows"], memory.arrays["go"]
        self.row = self.rows[spec["row"]]
        self.reports, self.wakeup = reports, Wakeup(socket.socket(fileno=spec["wakeup"]))
        self.ended: list[Episodes] = []
        self.measured: list[Mapping[str, float]] = []
        self.ticks_before = spec["ticks"]  # before the run was resumed

    def work(self) -> None:
        reported = time.monotonic()
        while True:
            self.row[BUSY] = 1
            if not self.go[0]:
                self.row[BUSY] = 0
                time.sleep(PAUSE_S)
                continue
            finite = self.iterate()
            self.row[BUSY] = 0
            if not finite:
                return
            if time.monotonic() - reported >= REPORT_S:
                reported = time.monotonic()
                self.report()

    def iterate(self) -> bool:
        """Take what the others learned, play, learn; False where a metric is not finite."""
        self.learner.optimiser.pull()
        # The actor takes newer weights when the count of updates has grown: with several workers it always has.
        self.learner.updates = others = int(self.rows[:, UPDATES].sum())
        topology = self.topology
        topology.steps_elsewhere = self.ticks_before + int(self.rows[:, TICKS].sum()) - topology.env_steps
        before = (topology.env_steps, topology.episodes, topology.selfplay)
        iteration = topology.iterate()
        assert iteration.update is not None
        self.row[STEPS] += topology.selfplay - before[2]
        self.row[UPDATES] += 1
        self.row[TICKS] += topology.env_steps - before[0]
        self.row[EPISODES] += topology.episodes - before[1]
        stale = int(self.rows[:, UPDATES].sum()) - others - 1
        metrics = {**iteration.update.metrics, "staleness_updates": stale}
        if iteration.episodes is not None:
            self.ended.append(iteration.episodes)
        self.measured.append(metrics)
        if all(math.isfinite(value) for value in metrics.values()):
            return True
        assert iteration.batch is not None
        self.reports.send_bytes(pack({"metrics": dict(metrics), "batch": asdict(iteration.batch)}))
        return False

    def report(self) -> None:
        """Send the returns and the mean metrics since the last report."""
        self.reports.send_bytes(
            pack({"metrics": _mean(self.measured), "episodes": asdict(joined_episodes(self.ended))})
        )
        self.ended, self.measured = [], []
        self.wakeup.ring()


def _mean(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in measured])) for name in measured[0]}


def main() -> None:
    """Work until standard input ends, which ends this process at once."""
    lines = read_lines()
    spec = json.loads(first_line(lines))
    end_with_parent(lines)
    reports = Connection(spec["reports"], readable=False)
    torch.set_num_threads(1)
    try:
        with told_as_users():
            plan = from_record(spec["game"], spec["seed"], spec["plan"], Config())
            Worker(plan, spec, reports).work()
    except SparringError as error:
        reports.send_bytes(pack({"failed": [error.wrong, error.where, error.do]}))
    except ConnectionError:
        return  # the learner is gone


if __name__ == "__main__":
    main()
