"""What a topology knows of its actors, the same on every host.

local://   local.py: processes with shared memory
ray://     remote.py: services that a host runs, one call for each rollout or block
central    remote.py: environments as services, and one inference service that decides for them
single     topologies/single.py: the learner's own process
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from sparring.acting.opponents import PastSelves
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.experience import PlayedRollout, played, side_by_side
from sparring.learn.actors.weights import SharedWeights, TopicWeights
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

Epsilon = Callable[[int, int], float]  # of actor i of n

PAST_SELVES = 4  # of the random streams that a seed has


class Actors:
    """Actors 0 … n - 1, supervised from the first `publish` until `close`.

    Each plays a few rollouts or blocks ahead of the learner; a synchronous one plays each version of the weights once.
    What is not said by a kind of actors is what holds for one that lives in the learner's process.
    """

    @property
    def actors(self) -> int:
        """How many there are; `spar services scale` may change it, which `tend` carries out."""
        return 1

    @property
    def restarts(self) -> int:
        """How many dead actors were replaced."""
        return 0

    def publish(self, learner: Learner, env_steps: int) -> None:
        """Publish the learner's weights; the first call starts the actors."""
        raise NotImplementedError

    def tend(self) -> None:
        """Replace actors that died; TrainingStopped where one keeps dying."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until an actor has played something or dies, at most so long."""

    def waiting(self, actor: int) -> int:
        """How many of its rollouts or blocks are there."""
        return 1

    def version(self, actor: int) -> int:
        """With which weights its oldest was played."""
        raise NotImplementedError

    def take(self, actor: int) -> Mapping[str, Array]:
        """The columns of its oldest, for `played` or `joined`; valid until it is released."""
        raise NotImplementedError

    def take_all(self) -> PlayedRollout:
        """The oldest rollouts of all, which must all have one, as one batch with arrays of its own."""
        raise NotImplementedError

    def release(self, actor: int) -> None:
        """What was taken may be overwritten, or what was handed over has arrived: the actor may go on."""

    def hand_over(self, actor: int) -> Any:
        """Its oldest, as an argument for a replay shard; what the actor plays next may overwrite it."""
        raise NotImplementedError

    def lost(self, actor: int) -> None:
        """What was handed over never arrived."""

    def broken_off(self) -> list[int]:
        """Actors whose next block does not follow their last, since this was last asked."""
        return []

    def replace(self, actor: int) -> None:
        """End a frozen one by force, where that can be done; another takes its number."""

    def flow(self) -> dict[str, float]:
        """How they do."""
        return {"actors": self.actors, "actor_restarts": self.restarts}

    def save(self) -> Tree:
        raise NotImplementedError

    def load(self, state: Tree) -> None:
        """Before the first `publish`."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop them."""


class PublishingActors(Actors):
    """Actors that read their weights from a channel: what is the same for processes and services."""

    def __init__(
        self, plan: Plan, spec: ActorSpec, weights: SharedWeights | TopicWeights, epsilon: Epsilon | None = None
    ) -> None:
        self._plan, self._spec, self._weights, self._epsilon = plan, spec, weights, epsilon
        self._past = PastSelves(spec.past, np.random.default_rng([plan.seed, PAST_SELVES]))
        self._first_generation = 0
        self._states: list[bytes] = []  # of synchronous actors that are not started yet
        self._broken_off: set[int] = set()

    @property
    def generation(self) -> int:
        """Higher than that of any actor so far: a resumed run begins with it, for other random numbers."""
        raise NotImplementedError

    def publish(self, learner: Learner, env_steps: int) -> None:
        """Now and then the weights are kept as a past self to play against."""
        if not self._weights.wants(learner.updates):
            return
        weights = learner.weights()
        if self._past.due(env_steps):
            self._weights.put_past_self(self._past.add(weights, env_steps), weights)
        self._weights.publish(weights, learner.updates, self._plan.algorithm.exploration(learner, env_steps))

    def take_all(self) -> PlayedRollout:
        whole = side_by_side([self.take(actor) for actor in range(self.actors)])
        for actor in range(self.actors):
            self.release(actor)
        return played(whole)

    def broken_off(self) -> list[int]:
        found, self._broken_off = sorted(self._broken_off), set()
        return found

    def save(self) -> Tree:
        return {"past": self._past.save(), "generation": self.generation, "actors": self._saved_actors()}

    def load(self, state: Tree) -> None:
        self._past.load(state["past"])
        for place, weights in enumerate(self._past.weights):
            self._weights.put_past_self(place, weights)
        self._first_generation = state["generation"]
        self._states = list(state.get("actors", ()))

    def _saved_actors(self) -> list[bytes]:
        """Each synchronous actor as it was before it played the newest version."""
        return self._states

    def _spec_of(self, actor: int, actors: int, generation: int) -> ActorSpec:
        """What one of so many is told."""
        state = self._states[actor] if actor < len(self._states) else b""
        epsilon = None if self._epsilon is None else self._epsilon(actor, actors)
        return replace(self._spec, actor=actor, generation=generation, state=state, epsilon=epsilon)


def wait_until(actors: Actors, condition: Callable[[], bool], timeout_s: float) -> bool:
    """Sleep until the condition holds; False where it does not in time."""
    until = time.monotonic() + timeout_s
    actors.tend()
    while not condition():
        left = until - time.monotonic()
        if left <= 0:
            return False
        actors.wait(left)
        actors.tend()
    return True
