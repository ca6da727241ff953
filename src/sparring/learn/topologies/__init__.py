"""How actors, replay and learner are wired: one file each, one function in it that reads like the picture.

A wiring learns in turns. The session (learn/session.py) owns the loop around them: limits, metrics,
checkpoints and models.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sparring.learn.actor import Episodes
from sparring.learn.plan import Plan
from sparring.learn.protocol import Batch, Learner, Update
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

TOPOLOGIES = {
    "single": "sparring.learn.topologies.single:wire",
    "sync": "sparring.learn.topologies.sync:wire",
    "ring": "sparring.learn.topologies.ring:wire",
    "async": "sparring.learn.topologies.async_:wire",
    "apex": "sparring.learn.topologies.apex:wire",
    "central": "sparring.learn.topologies.central:wire",
    "hogwild": "sparring.learn.topologies.hogwild:wire",
    "offline": "sparring.learn.topologies.offline:wire",
    "rllib": "sparring.learn.rllib.wiring:wire",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn came to. No update: the table is still filling."""

    update: Update | None
    batch: Batch | None
    episodes: Episodes | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sources:
    """What was learned from, for a model's lineage."""

    steps: Mapping[str, int]  # by source
    store_until_ms: int | None  # None: the store was not read


class Wiring(Protocol):
    """A topology at work."""

    @property
    def learner(self) -> Learner: ...
    @property
    def env_steps(self) -> int: ...  # ticks of all games together; 0 where nobody plays
    @property
    def position(self) -> int: ...  # how far the run is, in the steps that its plan counts
    @property
    def episodes(self) -> int: ...

    def turn(self) -> Turn:
        """Play and learn a little: at most one update."""
        ...

    def sources(self) -> Sources:
        """What was learned from so far."""
        ...

    def close(self) -> None:
        """Stop whatever was started; nothing is asked of it afterwards."""
        ...

    def save(self) -> Tree:
        """Everything needed to go on as if nothing had happened."""
        ...

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        ...


def wire(plan: Plan, store: Store | None) -> Wiring:
    """The plan's topology, ready for its first turn. `store` is given where the plan reads it."""
    module, name = TOPOLOGIES[plan.topology].split(":")
    build: Callable[[Plan, Store | None], Wiring] = getattr(importlib.import_module(module), name)
    return build(plan, store)
