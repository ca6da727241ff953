"""offline: no actor plays; the learner learns from the records of players.

    store ─ feeder ─► table ─► learner

A store that fits the table is read once, whole; the table grows for it up to MOST_BYTES. A larger one is
sampled while learning goes on: chunks in proportion to their steps, each whole, so that long episodes are seen more
often than they were played.
"""

import numpy as np
from numpy.random import Generator

from sparring.errors import Missing
from sparring.learn.algorithms.feeds import draw_for
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources, Topology
from sparring.learn.replay.local import FEEDING, SAMPLING, open_replay_table
from sparring.replay.feeder import Feeder
from sparring.replay.rows import row_layout
from sparring.replay.table import Table
from sparring.store.protocol import Store
from sparring.wire.tree import Tree, rng_state, set_rng_state

MOST_BYTES = 1 << 30  # that a table may grow to, unless capacity_bytes says otherwise


def build(plan: Plan, store: Store | None) -> Topology:
    """Learner, table, and a feeder that fills it from the store; Missing where the store has no such records."""
    if store is None:
        raise Missing("no store is open", where="--from store", do="Set [store] url")
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    rows = room(plan, store.stats(plan.spec.id).steps)
    feeding, sampling = (np.random.default_rng([plan.seed, stream]) for stream in (FEEDING, SAMPLING))
    table = open_replay_table(plan, learner.network, rows, 1)
    return _Offline(plan, learner, table, Feeder(store, plan.spec, table, 0, feeding), sampling)


def room(plan: Plan, held_steps: int) -> int:
    """Rows of a table that takes the store whole, if they are not too many; else as many as the settings say."""
    wanted = 2 * held_steps  # the views after cut episodes take rows, too
    row = row_layout(plan.spec.seats[0], masks=True).itemsize
    fits = wanted * row <= (plan.replay.capacity_bytes or MOST_BYTES)
    return max(plan.replay.capacity_steps, wanted if fits else 0)


class _Offline:
    """One iteration: one batch of records."""

    env_steps = 0
    episodes = 0

    def __init__(self, plan: Plan, learner: Learner, table: Table, feeder: Feeder, rng: Generator) -> None:
        self.plan, self.learner, self.table, self.feeder, self.rng = plan, learner, table, feeder, rng
        self.draw = draw_for(plan.algorithm, plan.settings)
        self.position = 0  # steps sampled
        self._whole = False  # the table holds all that the store held

    def iterate(self) -> Iteration:
        size = self.draw.steps
        if not self.table.ready:
            self._fill()
        elif not self._whole:
            self.feeder.feed(max(1, int(size / self.plan.replay.samples_per_insert)))
        batch, rows = self.draw.sample(self.table, self.rng)
        update = self.plan.algorithm.update(self.learner, batch)
        self.learner = update.learner
        self.table.update_priorities(rows, update.priorities)
        self.position += size
        return Iteration(update, batch, None, self.table.flow())

    def sources(self) -> Sources:
        return Sources(dict(self.feeder.steps), self.feeder.until_ms)

    def close(self) -> None:
        """Nothing was started."""

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "table": self.table.save(),
            "capacity": self.table.capacity,
            "feeder": self.feeder.save(),
            "rng": rng_state(self.rng),
            "position": self.position,
            "whole": self._whole,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        rows = state["capacity"]
        if rows != self.table.capacity:  # the store has grown since
            self.table = open_replay_table(self.plan, self.learner.network, rows, 1)
            self.feeder.into(self.table)
        self.table.load(state["table"])
        self.feeder.load(state["feeder"])
        set_rng_state(self.rng, state["rng"])
        self.position, self._whole = state["position"], state["whole"]

    def _fill(self) -> None:
        self.feeder.fill()
        self._whole = self.table.written < self.table.capacity
        if not self.table.ready:
            unfit = f", and {self.feeder.unfit_chunks} chunks of another spec" if self.feeder.unfit_chunks else ""
            raise Missing(
                f"the store holds no records of {self.plan.game} that fit{unfit}",
                where="--from store",
                do=f"Collect some: `spar collect {self.plan.game}`",
            )
