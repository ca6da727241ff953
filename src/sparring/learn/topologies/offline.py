"""offline: no actor plays; the learner learns from the records of players.

    store ─ feeder ─► table ─► learner

A store that fits the table is read once, whole; the table grows for it up to MOST_BYTES. A larger one is
sampled while learning goes on: chunks in proportion to their steps, each whole, so that long episodes are seen more
often than they were played.
"""

from dataclasses import replace

from sparring.errors import Missing
from sparring.learn.algorithms.feeds import draw_for
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources, Topology
from sparring.learn.replay.local import LocalReplay
from sparring.replay.rows import row_layout
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

MOST_BYTES = 1 << 30  # that a table may grow to, unless capacity_bytes says otherwise


def build(plan: Plan, store: Store | None) -> Topology:
    """Learner, table, and a feeder that fills it from the store; Missing where the store has no such records."""
    if store is None:
        raise Missing("no store is open", where="--from store", do="Set [store] url")
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    return OfflineLoop(plan, learner, store)


def room(plan: Plan, held_steps: int) -> int:
    """Rows of a table that takes the store whole, if they are not too many; else as many as the settings say."""
    wanted = 2 * held_steps  # the views after cut episodes take rows, too
    row = row_layout(plan.spec.seats[0], masks=True).itemsize
    fits = wanted * row <= (plan.replay.capacity_bytes or MOST_BYTES)
    return max(plan.replay.capacity_steps, wanted if fits else 0)


class OfflineLoop:
    """One iteration: one batch of records."""

    env_steps = 0
    episodes = 0

    def __init__(self, plan: Plan, learner: Learner, store: Store) -> None:
        self.plan, self.learner, self._store = plan, learner, store
        self._open_table(room(plan, store.stats(plan.spec.id).steps))
        self.position = 0  # steps sampled
        self._whole = False  # the table holds all that the store held

    def iterate(self) -> Iteration:
        size = draw_for(self.plan.algorithm, self.plan.settings).steps
        if not self.table.ready:
            self._fill()
        elif not self._whole:
            self.feeder.feed(max(1, int(size / self.plan.replay.samples_per_insert)))
        batch, rows = self.replay.sample()
        self.learner.steps = self.position
        update = self.plan.algorithm.update(self.learner, batch)
        self.learner = update.learner
        self.replay.learned(rows, update.priorities)
        self.position += size
        return Iteration(update, batch, None, self.table.flow())

    def sources(self) -> Sources:
        return Sources(dict(self.feeder.steps), self.feeder.until_ms)

    def close(self) -> None:
        """Nothing was started."""

    def save(self) -> Tree:
        return self.replay.save() | {
            "learner": self.learner.save(),
            "capacity": self.table.capacity,
            "position": self.position,
            "whole": self._whole,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        if state["capacity"] != self.table.capacity:  # the store has grown since
            self._open_table(state["capacity"])
        self.replay.load(state)
        self.position, self._whole = state["position"], state["whole"]

    def _open_table(self, rows: int) -> None:
        plan = replace(self.plan, replay=replace(self.plan.replay, capacity_steps=rows))
        self.replay = LocalReplay(plan, self.learner.network, 0, self._store, actors=1)
        self.table = self.replay.table
        assert self.replay.feeder is not None  # it was given a store
        self.feeder = self.replay.feeder

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
