"""A worker of the topology `hogwild`: plays and learns by itself, on parameters that all workers share.

    python -m sparring.learn.topologies.hogwild_worker '{"game": …, "plan": …, "block": 5, "line": 6, "row": 0, …}'

It says what it earned and measured on a line to whoever started it, and ends when nobody is there any more.
"""

import json
import math
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
from sparring.learn.actors.shared_arrays import Layout, SharedArrays
from sparring.learn.plan import Plan, from_record
from sparring.learn.protocol import Batch, Iteration, Learner
from sparring.learn.topologies import single
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree, pack

REPORT_S = 0.05  # between two reports
PAUSE_S = 0.002  # between two looks whether the others are waited for
TICKS, EPISODES, UPDATES, STEPS, BUSY = range(5)  # of a row


@runtime_checkable
class Sharing(Learner, Protocol):
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


def main(order: Mapping[str, Any]) -> None:
    """Work until the line is closed."""
    line = socket.socket(fileno=order["line"])
    torch.set_num_threads(1)
    try:
        plan = from_record(order["game"], order["seed"], order["plan"], Config())
        Worker(plan, order, line).work()
    except SparringError as error:
        _send(line, {"failed": [error.wrong, error.where, error.do]})
    except (BrokenPipeError, ConnectionError):
        return  # nobody is there to hear it


class Worker:
    """One worker. Only its own row of counters is written by it, and the shared numbers by everybody."""

    def __init__(self, plan: Plan, order: Mapping[str, Any], line: socket.socket) -> None:
        own = np.random.SeedSequence([plan.seed, order["row"], order["life"]]).generate_state(1)[0]
        self.topology = single.build(replace(plan, seed=int(own)), None)
        learner = self.topology.learner
        assert isinstance(learner, Sharing)  # hogwild.py has asked
        self.learner: Sharing = learner
        block = SharedArrays(order["block"], layout(self.learner.numbers.shape, plan.actors))
        self.learner.share(block.arrays["numbers"])
        self.rows, self.go = block.arrays["rows"], block.arrays["go"]
        self.row = self.rows[order["row"]]
        self.line, self.ear = line, select.poll()
        self.ear.register(line, select.POLLIN)
        self.earned: list[Episodes] = []
        self.measured: list[Mapping[str, float]] = []
        self.learned_before = order["learned"]  # steps of earlier sittings

    def work(self) -> None:
        said = time.monotonic()
        while not self.ear.poll(0):  # nothing is ever told a worker: what can be read is the end
            self.row[BUSY] = 1
            if not self.go[0]:
                self.row[BUSY] = 0
                time.sleep(PAUSE_S)
                continue
            finite = self.iterate()
            self.row[BUSY] = 0
            if not finite:
                return
            if time.monotonic() - said >= REPORT_S:
                said = time.monotonic()
                self.report()

    def iterate(self) -> bool:
        """Take what the others learned, play, learn; False where what came of it is no number."""
        self.learner.pull()
        # `follow` asks whether there is anything new by the count of updates: of all workers there always is.
        self.learner.updates = others = int(self.rows[:, UPDATES].sum())
        self.learner.steps = self.learned_before + int(self.rows[:, STEPS].sum())
        before, steps = (self.topology.env_steps, self.topology.episodes), self.learner.steps
        turn = self.topology.iterate()
        assert turn.update is not None
        self.row[STEPS] += self.learner.steps - steps
        self.row[UPDATES] += 1
        self.row[TICKS] += self.topology.env_steps - before[0]
        self.row[EPISODES] += self.topology.episodes - before[1]
        stale = int(self.rows[:, UPDATES].sum()) - others - 1
        return self.note(turn, {**turn.update.metrics, "staleness_updates": stale})

    def note(self, turn: Iteration, metrics: Mapping[str, float]) -> bool:
        if turn.episodes is not None and len(turn.episodes.returns):
            self.earned.append(turn.episodes)
        self.measured.append(metrics)
        if all(math.isfinite(value) for value in metrics.values()):
            return True
        assert turn.batch is not None
        _send(self.line, {"metrics": dict(metrics), "batch": batch_tree(turn.batch)})
        return False

    def report(self) -> None:
        """Say what was earned and measured since the last time."""
        returns = [one.returns for one in self.earned]
        others = [one.against_others for one in self.earned]
        measured = self.measured
        _send(
            self.line,
            {
                "metrics": {name: float(np.mean([one[name] for one in measured])) for name in measured[0]},
                "returns": np.concatenate(returns) if returns else np.zeros(0, np.float32),
                "against_others": np.concatenate(others) if others else np.zeros(0, bool),
            },
        )
        self.earned, self.measured = [], []


def batch_tree(batch: Batch) -> Tree:
    """Trajectories as a tree; `Batch(**tree)` is the same again."""

    def plain(value: Array | Mapping[str, Array] | None) -> Tree:
        return dict(value) if isinstance(value, Mapping) else value

    return {name: plain(getattr(batch, name)) for name in Batch.__slots__}


def _send(line: socket.socket, said: Tree) -> None:
    body = pack(said)
    line.sendall(len(body).to_bytes(4, "little") + body)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
