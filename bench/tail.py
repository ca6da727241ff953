"""The tail of a sample while others insert, and of a loop that does nothing. For bench/replay.py.

A learner samples, learns from the batch (dqn's own update, in torch) and says what it found; every other turn it runs
a loop that does nothing and lasts as long as a sample, in the sample's place: `idle`, what the machine itself adds.
Samples back to back are told beside it. No learner does that, and one thing only happens there: a loop that never lets
go of the interpreter has it taken away every 5 ms (`sys.getswitchinterval`), in the middle of a sample.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from bench.feeding import ADD, BATCH, Writer, paced, steps

from sparring.games import cartpole
from sparring.learn.algorithms.dqn import Dqn, DqnConfig
from sparring.replay.steps import Batch
from sparring.replay.table import Table


@dataclass
class Tail:
    """Seconds of each sample between two updates, of each loop that did nothing there, of each sample back to back."""

    sample: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    back_to_back: list[float] = field(default_factory=list)
    inserted_per_s: float = 0.0


@contextmanager
def thread(table: Table, rng: np.random.Generator) -> Iterator[Callable[[], object]]:
    """A thread of this process inserts ADD steps at a time, 32,000/s; nothing is left to the learner."""
    stop, added = threading.Event(), steps(ADD, np.arange(ADD), rng)
    inserting = threading.Thread(target=paced, args=(lambda: table.insert(added), stop.is_set))
    inserting.start()
    try:
        yield lambda: None
    finally:
        stop.set()
        inserting.join()


@contextmanager
def process(table: Table, rng: np.random.Generator) -> Iterator[Callable[[], object]]:
    """Another process hands over ADD steps at a time, 32,000/s; the learner drains them before it samples."""
    with Writer("paced", 0) as writer:
        yield lambda: writer.drain(table)


INSERTING = {"thread": thread, "process": process}


class Sampling:
    """A dqn of the size of CartPole's preset that learns from `table`."""

    def __init__(self, table: Table, rng: np.random.Generator) -> None:
        torch.set_num_threads(1)
        self._table, self._rng, self._dqn = table, rng, Dqn()
        self._learner = self._dqn.begin(cartpole.SPEC, DqnConfig(hidden_units=(64, 64)), seed=0)

    def tail(self, samples: int, who: str) -> Tail:
        """Of so many samples of each kind while `who` inserts."""
        found = Tail()
        with INSERTING[who](self._table, self._rng) as take_in:
            begun, before = time.perf_counter(), self._table.steps
            lasting_s = statistics.median(self._turn(take_in)[0] for _ in range(100))
            turns = turns_of(lasting_s)
            for _ in range(samples):
                took_s, batch = self._turn(take_in)
                found.sample.append(took_s)
                take_in()
                found.idle.append(spin(turns))
                self._dqn.update(self._learner, batch)
            for _ in range(samples):
                take_in()
                found.back_to_back.append(self._sample()[0])
            found.inserted_per_s = (self._table.steps - before) / (time.perf_counter() - begun)
        return found

    def _turn(self, take_in: Callable[[], object]) -> tuple[float, Batch]:
        """What the sample took, and what was learned."""
        take_in()
        took_s, batch, rows = self._sample()
        update = self._dqn.update(self._learner, batch)
        self._table.update_priorities(rows, update.priorities)
        return took_s, batch

    def _sample(self) -> tuple[float, Batch, np.ndarray]:
        begun = time.perf_counter()
        batch, rows = self._table.sample(BATCH, self._rng, n_steps=1, discount=0.99)
        return time.perf_counter() - begun, batch, rows


def turns_of(lasting_s: float) -> int:
    """Of a loop that does nothing and lasts so long where nothing comes between."""
    turns = 100
    while (found := statistics.median(spin(turns) for _ in range(20))) < lasting_s:
        turns = int(turns * max(1.05, min(2.0, lasting_s / found)))
    return turns


def spin(turns: int) -> float:
    """Seconds that a loop of so many turns took."""
    begun = time.perf_counter()
    for _ in range(turns):
        pass
    return time.perf_counter() - begun
