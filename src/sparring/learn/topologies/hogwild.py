"""hogwild: workers that play and learn by themselves, on parameters that they share without a lock.

    worker: games ─► rollout ─► gradient ─┐           ┌─ θ and its statistics, in shared memory
    worker: games ─► rollout ─► gradient ─┼─ θ += … ─►│
    worker: games ─► rollout ─► gradient ─┘  ◄── θ ───┘  ◄── supervisor: counts, checkpoints, models

Experience stays where it was played. A worker that dies is started again and the others do not notice; what it had
learned is in θ. Nobody plays between two turns, so that a checkpoint and what is measured are of one moment.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparring.acting.actor import Episodes
from sparring.errors import ConfigError, TrainingStopped
from sparring.learn.actors.shared_arrays import SharedArrays
from sparring.learn.plan import Plan
from sparring.learn.protocol import Batch, Iteration, Sources, Topology, Update
from sparring.learn.topologies.hogwild_worker import BUSY, EPISODES, STEPS, TICKS, UPDATES, Sharing, layout
from sparring.store.protocol import Store
from sparring.wire.tree import Tree, unpack

TURN_S = 0.1  # at most, of one turn
SETTLE_S = 30.0  # a rollout and its gradient take no longer
END_S = 5.0
LIVES = 3  # that may be lost in a row without a single update

_HEAD = 4  # bytes


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner whose numbers lie in shared memory, and workers that begin with the first turn."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    if not isinstance(learner, Sharing) or plan.algorithm.feeds != "trajectories":
        raise ConfigError(
            f"{plan.algo} does not learn in memory that several workers change",
            where="--topology hogwild",
            do="Use a3c, or another topology",
        )
    block = SharedArrays.create(layout(learner.numbers.shape, plan.actors))
    block.arrays["numbers"][:] = learner.numbers
    learner.share(block.arrays["numbers"])
    return _Hogwild(plan, learner, block)


@dataclass(slots=True)
class _Worker:
    """One place among the workers, and whoever holds it now."""

    row: int
    process: subprocess.Popen[bytes]
    line: socket.socket
    heard: bytearray = field(default_factory=bytearray)

    def hear(self) -> Iterator[Tree]:
        """What it has said since the last time."""
        while True:
            try:
                data = self.line.recv(1 << 16)
            except (BlockingIOError, ConnectionError):
                break
            if not data:
                break
            self.heard += data
        while len(self.heard) >= _HEAD:
            end = _HEAD + int.from_bytes(self.heard[:_HEAD], "little")
            if len(self.heard) < end:
                return
            yield unpack(bytes(self.heard[_HEAD:end]))
            del self.heard[:end]

    def end(self) -> None:
        """It ends when its line does; one that does not is killed."""
        self.line.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Hogwild:
    """The supervisor: lets the workers work, hears them, and starts anew those that have died."""

    def __init__(self, plan: Plan, learner: Sharing, block: SharedArrays) -> None:
        self.plan, self.learner, self.block = plan, learner, block
        self._rows, self._go = block.arrays["rows"], block.arrays["go"]
        self._before = np.zeros(5, np.int64)  # counted in earlier sittings
        self._workers: list[_Worker] = []
        self._lives = np.zeros(plan.actors, np.int64)  # begun in each place
        self._idle = np.zeros(plan.actors, np.int64)  # of these, lost in a row without an update
        self._done = np.zeros(plan.actors, np.int64)  # updates of each place when its holder was started
        self.restarts = 0

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
        """Let them play and learn until one of them has something to say."""
        if not self._workers:
            self._workers = [self._start(row) for row in range(self.plan.actors)]
        self._go[0] = 1
        try:
            said = self._listen()
        finally:
            self._go[0] = 0
        self.learner.pull()
        self.learner.updates, self.learner.steps = self._count(UPDATES), self._count(STEPS)
        turn = self._told(said)
        self._revive()
        return turn

    def save(self) -> Tree:
        self._settle()  # and no pull: what the last turn ended with is what was looked at, and is published
        self.learner.updates, self.learner.steps = self._count(UPDATES), self._count(STEPS)
        return {"learner": self.learner.save(), "counted": self._before + self._rows.sum(axis=0)}

    def load(self, state: Tree) -> None:
        """Before the first turn, so nobody else changes the numbers. Games and past selves begin anew."""
        self.learner.load(state["learner"])
        self._before = state["counted"].copy()

    def close(self) -> None:
        for worker in self._workers:
            with suppress(OSError):  # one that has died has closed it already
                worker.line.shutdown(socket.SHUT_RDWR)
        for worker in self._workers:
            worker.end()
        self._workers = []
        self.block.close()

    def _count(self, column: int) -> int:
        return int(self._before[column] + self._rows[:, column].sum())

    def _listen(self) -> list[Tree]:
        until = time.monotonic() + TURN_S
        while True:
            said = [one for worker in self._workers for one in worker.hear()]
            dead = [worker for worker in self._workers if worker.process.poll() is not None]
            if said or dead or time.monotonic() >= until:
                return said + [one for worker in dead for one in worker.hear()]  # its last words may have come since
            time.sleep(0.002)

    def _told(self, said: list[Tree]) -> Iteration:
        for one in said:
            if "failed" in one:
                wrong, where, do = one["failed"]
                raise TrainingStopped(wrong, where=where, do=do)
            if "batch" in one:
                return Iteration(Update(self.learner, None, one["metrics"]), Batch(**one["batch"]), None, {})
        shown = {"restarts": float(self.restarts)}
        if not said:
            return Iteration(None, None, None, shown)
        metrics = {name: float(np.mean([one["metrics"][name] for one in said])) for name in said[0]["metrics"]}
        episodes = Episodes(
            np.concatenate([one["returns"] for one in said]), np.concatenate([one["against_others"] for one in said])
        )
        return Iteration(Update(self.learner, None, metrics), None, episodes, shown)

    def _start(self, row: int) -> _Worker:
        ours, theirs = socket.socketpair()
        order: dict[str, Any] = {
            "game": self.plan.game,
            "seed": self.plan.seed,
            "plan": self.plan.record(),
            "block": self.block.descriptor,
            "line": theirs.fileno(),
            "row": row,
            "life": int(self._lives[row]),
            "learned": int(self._before[STEPS]),
        }
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "sparring.learn.topologies.hogwild_worker", json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the supervisor, which ends them
                pass_fds=(self.block.descriptor, theirs.fileno()),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            )
        ours.setblocking(False)
        self._lives[row] += 1
        self._done[row] = self._rows[row, UPDATES]
        self._rows[row, BUSY] = 0
        return _Worker(row, process, ours)

    def _revive(self) -> None:
        """Fill the places of those that have died. What they had not yet said is lost; what they learned is not."""
        for worker in self._workers:
            if worker.process.poll() is None:
                continue
            row = worker.row
            self._idle[row] = 0 if self._rows[row, UPDATES] > self._done[row] else self._idle[row] + 1
            worker.line.close()
            if self._idle[row] >= LIVES:
                raise TrainingStopped(
                    f"a worker ended {LIVES} times before it had learned anything (code {worker.process.returncode})",
                    where="hogwild",
                    do="See what it printed, or use --topology single",
                )
            self.restarts += 1
            self._workers[row] = self._start(row)

    def _settle(self) -> None:
        """Wait until nobody is in the middle of a rollout."""
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            busy = [worker for worker in self._workers if self._rows[worker.row, BUSY]]
            if not any(worker.process.poll() is None for worker in busy):
                return
            time.sleep(0.002)
