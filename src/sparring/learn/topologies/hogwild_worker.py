"""A worker of the topology `hogwild`: plays and learns by itself, on parameters that all workers share.

`python -m sparring.learn.topologies.hogwild_worker`, what it is told as a line of JSON on standard input. It reports
returns and metrics on an inherited socket, and ends with its standard input.
"""

import json
import math
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from sparring.acting.actor import Episodes
from sparring.config import Config
from sparring.errors import SparringError
from sparring.learn.actors.actor_process import lines_of
from sparring.learn.actors.shared_memory import Layout, SharedArrays
from sparring.learn.actors.wakeup import Wakeup
from sparring.learn.plan import Plan, from_record
from sparring.learn.protocol import Batch, Iteration, Learner
from sparring.learn.topologies import single
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree, pack

REPORT_S = 0.05  # between two reports
PAUSE_S = 0.002  # between two looks whether workers may go on
TICKS, EPISODES, UPDATES, STEPS, BUSY = range(5)  # of a row


@runtime_checkable
class SharedLearner(Learner, Protocol):
    """A learner whose parameters and optimiser's statistics can lie in memory that several of them change."""

    steps: int  # learned from by all

    @property
    def numbers(self) -> Array:
        """What would be shared."""
        ...

    def share(self, numbers: Array) -> None:
        """From now on these are the parameters and statistics."""
        ...

    def pull(self) -> None:
        """Take what the others have learned."""
        ...


def layout(numbers: tuple[int, ...], workers: int) -> Layout:
    """What is shared: parameters and their statistics, a row of counters for each worker, and whether to go on."""
    return {"numbers": ("float32", numbers), "rows": ("int64", (workers, 5)), "go": ("int64", (1,))}


def main() -> None:
    """Work until standard input ends."""
    spec = json.loads(next(lines_of(sys.stdin.fileno())))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a game prints goes to the log
    reports = socket.socket(fileno=spec["reports"])
    torch.set_num_threads(1)
    try:
        plan = from_record(spec["game"], spec["seed"], spec["plan"], Config())
        Worker(plan, spec, reports).work()
    except SparringError as error:
        _send(reports, {"failed": [error.wrong, error.where, error.do]})
    except ConnectionError:
        return  # the learner is gone


class Worker:
    """One worker. It alone writes its row of counters; all workers write the shared numbers."""

    def __init__(self, plan: Plan, spec: Mapping[str, Any], reports: socket.socket) -> None:
        own = np.random.SeedSequence([plan.seed, spec["row"], spec["generation"]]).generate_state(1)[0]
        self.topology = single.build(replace(plan, seed=int(own)), None)
        learner = self.topology.learner
        assert isinstance(learner, SharedLearner)  # hogwild.py has asked
        self.learner: SharedLearner = learner
        memory = SharedArrays(spec["memory"], layout(self.learner.numbers.shape, plan.actors))
        self.learner.share(memory.arrays["numbers"])
        self.rows, self.go = memory.arrays["rows"], memory.arrays["go"]
        self.row = self.rows[spec["row"]]
        self.reports, self.wakeup = reports, Wakeup.inherited(spec["wakeup"])
        self.stdin = select.poll()
        self.stdin.register(sys.stdin.fileno(), select.POLLIN)
        self.ended: list[Episodes] = []
        self.measured: list[Mapping[str, float]] = []
        self.learned_before = spec["learned"]  # steps before the run was resumed

    def work(self) -> None:
        reported = time.monotonic()
        while not self.stdin.poll(0):  # nothing more is sent: what can be read is the end
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
        self.learner.pull()
        # The actor takes newer weights when the count of updates has grown: with several workers it always has.
        self.learner.updates = others = int(self.rows[:, UPDATES].sum())
        self.learner.steps = self.learned_before + int(self.rows[:, STEPS].sum())
        before, steps = (self.topology.env_steps, self.topology.episodes), self.learner.steps
        iteration = self.topology.iterate()
        assert iteration.update is not None
        self.row[STEPS] += self.learner.steps - steps
        self.row[UPDATES] += 1
        self.row[TICKS] += self.topology.env_steps - before[0]
        self.row[EPISODES] += self.topology.episodes - before[1]
        stale = int(self.rows[:, UPDATES].sum()) - others - 1
        return self.note(iteration, {**iteration.update.metrics, "staleness_updates": stale})

    def note(self, iteration: Iteration, metrics: Mapping[str, float]) -> bool:
        if iteration.episodes is not None and len(iteration.episodes.returns):
            self.ended.append(iteration.episodes)
        self.measured.append(metrics)
        if all(math.isfinite(value) for value in metrics.values()):
            return True
        assert iteration.batch is not None
        _send(self.reports, {"metrics": dict(metrics), "batch": batch_tree(iteration.batch)})
        return False

    def report(self) -> None:
        """Send the returns and the mean metrics since the last report."""
        returns = [one.returns for one in self.ended]
        others = [one.against_others for one in self.ended]
        measured = self.measured
        _send(
            self.reports,
            {
                "metrics": {name: float(np.mean([one[name] for one in measured])) for name in measured[0]},
                "returns": np.concatenate(returns) if returns else np.zeros(0, np.float32),
                "against_others": np.concatenate(others) if others else np.zeros(0, bool),
            },
        )
        self.ended, self.measured = [], []
        self.wakeup.ring()


def batch_tree(batch: Batch) -> Tree:
    """Trajectories as a tree; `Batch(**tree)` is the same again."""

    def plain(value: Array | Mapping[str, Array] | None) -> Tree:
        return dict(value) if isinstance(value, Mapping) else value

    return {name: plain(getattr(batch, name)) for name in Batch.__slots__}


def _send(reports: socket.socket, report: Tree) -> None:
    body = pack(report)
    reports.sendall(len(body).to_bytes(4, "little") + body)


if __name__ == "__main__":
    main()
