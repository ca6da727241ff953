"""Replay in the learner's own process: one table, read and written in place."""

from dataclasses import replace
from typing import Any

import numpy as np

from sparring.acting.actor import Episodes
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.protocol import AsyncActors, InsertedBlock
from sparring.learn.algorithms.feeds import Draw, draw_for
from sparring.learn.plan import Plan
from sparring.learn.protocol import Batch
from sparring.nets.shapes import state_width
from sparring.replay.feeder import Feeder
from sparring.replay.table import Table, open_table
from sparring.store.protocol import Store
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree, rng_state, set_rng_state


class LocalReplay:
    """A table, and a feeder where the store is mixed in."""

    def __init__(self, plan: Plan, part: ActorSpec, store: Store | None) -> None:
        self._plan, self._part = plan, part
        self.table = table_for(plan, part, plan.replay.capacity_steps)
        streams, feeding = plan.actors * part.streams, np.random.default_rng([plan.seed, 3])
        self.feeder = None if store is None else Feeder(store, plan.spec, self.table, streams, feeding)
        self._draw: Draw = draw_for(plan.algorithm, plan.settings)
        self._rng = np.random.default_rng([plan.seed, 2])
        self._arrived: list[InsertedBlock] = []

    def under_way(self) -> int:
        return 0

    def has_room(self, actor: int) -> bool:
        return True

    def rest(self, seconds: float) -> bool:
        return False

    def insert(self, players: AsyncActors[Any], actor: int) -> None:
        block = players.take(actor)
        (steps,) = block.steps
        first = self._first(actor)
        self.table.widen(first + self._part.streams)
        self.table.insert(replace(steps, stream=steps.stream + first))
        fed = 0 if self.feeder is None else self.feeder.keep_pace(len(steps), self._plan.replay.store_share)
        ended = Episodes(block.episodes.returns.copy(), block.episodes.against_others.copy())
        self._arrived.append(InsertedBlock(ended, block.env_steps, block.games, len(steps), fed))
        players.release(actor)

    def arrived(self) -> list[InsertedBlock]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def break_off(self, actor: int) -> None:
        first = self._first(actor)
        for stream in range(first, min(first + self._part.streams, self.table.streams)):
            self.table.break_off(stream)

    def ready(self) -> bool:
        return self.table.ready

    def sample(self) -> tuple[Batch, Array]:
        return self._draw.sample(self.table, self._rng)

    def learned(self, which: Array, priorities: Array | None) -> None:
        self.table.update_priorities(which, priorities)

    def emptied(self) -> bool:
        return False

    def flow(self) -> dict[str, float]:
        return {}

    def save(self) -> Tree:
        return {
            "table": self.table.save(),
            "feeder": None if self.feeder is None else self.feeder.save(),
            "rng": rng_state(self._rng),
        }

    def load(self, state: Tree) -> None:
        self.table.load(state["table"])
        if self.feeder is not None:
            self.feeder.load(state["feeder"])
        set_rng_state(self._rng, state["rng"])

    def close(self) -> None:
        """Nothing was started."""

    def _first(self, actor: int) -> int:
        """Of an actor's streams. That of the store comes after those of the actors whom the plan knows."""
        return actor * self._part.streams + (actor >= self._plan.actors)


def table_for(plan: Plan, part: ActorSpec, capacity_steps: int) -> Table:
    """A table that takes in what the plan's actors play, and one stream more for the store."""
    seat = plan.spec.seats[0]  # `begin` has refused a game whose seats differ
    return open_table(
        seat,
        replace(plan.replay, capacity_steps=capacity_steps),
        streams=plan.actors * part.streams + 1,
        masks=seat.action.masks > 0,
        frame_stack=plan.spec.frame_stack,
        state_numbers=state_width(part.network) if plan.algorithm.feeds == "sequences" else 0,
    )
