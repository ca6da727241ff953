"""Replay as a learner uses it, and its form in the learner's own process: one table, read and written in place."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparring.acting.actor import Episodes
from sparring.learn.actors.experience import joined
from sparring.learn.actors.protocol import Actors
from sparring.learn.algorithms.feeds import draw_for
from sparring.learn.plan import Plan
from sparring.learn.protocol import Batch
from sparring.nets.shapes import state_width
from sparring.replay.feeder import Feeder
from sparring.replay.steps import Steps
from sparring.replay.table import Table, open_table
from sparring.store.protocol import Store
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec
from sparring.wire.tree import Tree, rng_state, set_rng_state

SAMPLING, FEEDING = 2, 3  # of the random streams that a seed has


@dataclass(frozen=True, slots=True)
class InsertedBlock:
    """A block that replay has taken in."""

    episodes: Episodes
    env_steps: int
    games: int  # that ended
    steps: int
    fed: int = 0  # steps of the store that were inserted beside them


class Replay:
    """What an off-policy learner samples: a table in its own process, or shards in services (sharded.py).

    What is not said by a kind of replay is what holds for a table in the learner's process.
    """

    feeder: Feeder | None = None

    def pending(self) -> int:
        """Blocks on their way into replay."""
        return 0

    def has_room(self, actor: int) -> bool:
        """Whether one more block of that actor may be on its way."""
        return True

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a shard answers; False at once where none is asked."""
        return False

    def insert(self, actors: Actors, actor: int) -> None:
        """Take in the oldest block of an actor."""
        raise NotImplementedError

    def inserted(self) -> list[InsertedBlock]:
        """What was taken in since this was last asked."""
        raise NotImplementedError

    def break_off(self, actor: int) -> None:
        """What it plays next does not follow what it played last."""

    def ready(self) -> bool:
        """Whether anything can be sampled."""
        raise NotImplementedError

    def sample(self) -> tuple[Batch, Any] | None:
        """A batch, and its rows for `learned`; None: it is not there yet."""
        raise NotImplementedError

    def learned(self, rows: Any, priorities: Array | None) -> None:
        """The priorities that the learner gave the batch."""
        raise NotImplementedError

    def emptied(self) -> bool:
        """Whether so much of what was taken in is lost that replay must fill again."""
        return False

    def flow(self) -> dict[str, float]:
        return {}

    def save(self) -> Tree:
        raise NotImplementedError

    def load(self, state: Tree) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Stop what was started."""


class LocalReplay(Replay):
    """A table, and a feeder where the store is read. `streams` are those of one actor; 0: the store alone is read."""

    def __init__(
        self, plan: Plan, network: NetworkSpec, streams: int, store: Store | None, *, actors: int, masks: bool = True
    ) -> None:
        self._seat = plan.spec.seats[0]
        self._store_share, self._streams, self._actors = plan.replay.store_share, streams, actors
        self.table = open_replay_table(plan, network, plan.replay.capacity_steps, actors * streams + 1, masks=masks)
        feeding = np.random.default_rng([plan.seed, FEEDING])
        self.feeder = (
            None
            if store is None
            else Feeder(store, plan.whole or plan.spec, self.table, actors * streams, feeding, plan.kind)
        )
        self._draw = draw_for(plan.algorithm, plan.settings)
        self._rng = np.random.default_rng([plan.seed, SAMPLING])
        self._inserted: list[InsertedBlock] = []

    def insert(self, actors: Actors, actor: int) -> None:
        block = joined(actors.take(actor), self._seat)
        fed = self.insert_steps(block.steps, actor)
        ended = Episodes(block.episodes.returns.copy(), block.episodes.against_others.copy())
        self._inserted.append(InsertedBlock(ended, block.env_steps, block.games, len(block.steps), fed))
        actors.release(actor)

    def insert_steps(self, steps: Steps, actor: int = 0) -> int:
        """Insert an actor's steps, and the store's share beside them; how many those were."""
        first = self._first(actor)
        self.table.widen(first + self._streams)
        self.table.insert(replace(steps, stream=steps.stream + first) if first else steps)
        return 0 if self.feeder is None else self.feeder.keep_pace(len(steps), self._store_share)

    def inserted(self) -> list[InsertedBlock]:
        inserted, self._inserted = self._inserted, []
        return inserted

    def break_off(self, actor: int) -> None:
        first = self._first(actor)
        for stream in range(first, min(first + self._streams, self.table.streams)):
            self.table.break_off(stream)

    def ready(self) -> bool:
        return self.table.ready

    def sample(self) -> tuple[Batch, Array]:
        return self._draw.sample(self.table, self._rng)

    def learned(self, rows: Array, priorities: Array | None) -> None:
        self.table.update_priorities(rows, priorities)

    def save(self) -> Tree:
        feeder = None if self.feeder is None else self.feeder.save()
        return {"table": self.table.save(), "feeder": feeder, "rng": rng_state(self._rng)}

    def load(self, state: Tree) -> None:
        self.table.load(state["table"])
        if self.feeder is not None:
            self.feeder.load(state["feeder"])
        set_rng_state(self._rng, state["rng"])

    def _first(self, actor: int) -> int:
        """Of an actor's streams. The store's stream comes after those of the actors that the plan has."""
        return actor * self._streams + (actor >= self._actors)


def open_replay_table(plan: Plan, network: NetworkSpec, rows: int, streams: int, *, masks: bool = True) -> Table:
    """A table of the plan's replay settings, with so many rows; `masks`: it keeps legal actions, if there are any."""
    seat = plan.spec.seats[0]
    return open_table(
        seat,
        replace(plan.replay, capacity_steps=rows),
        streams=streams,
        masks=masks and seat.action.masks > 0,
        frame_stack=plan.spec.frame_stack,
        state_numbers=memory_numbers(plan, network),
    )


def memory_numbers(plan: Plan, network: NetworkSpec) -> int:
    """Of a recurrent state, kept with each step where sequences are learned."""
    return state_width(network) if plan.algorithm.feeds == "sequences" else 0
