"""The learner's own process as the one actor: it plays when it is asked to, with the learner's newest weights."""

import numpy as np

from sparring.acting.actor import Actor, Episodes
from sparring.acting.opponents import PastSelves
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.protocol import Learner
from sparring.nets.forward import forward_with_torch
from sparring.wire.tree import Tree


class InProcessActor:
    """A SyncActors of one actor. Nothing is played ahead, so that a seed determines everything."""

    actors, restarts, generation = 1, 0, 0

    def __init__(self, spec: ActorSpec, learner: Learner) -> None:
        self._spec, self._learner = spec, learner
        self._actor, self._opponents = spec.open_actor(learner.weights(), forward=forward_with_torch)
        self._past = PastSelves(spec.past, np.random.default_rng([spec.seed, 4]))
        self._version = 0  # updates of the weights that the actor plays with
        self.masks = self._actor.masks

    def newest(self) -> Actor:
        """The actor with the learner's newest weights."""
        learner, actor = self._learner, self._actor
        if self._version != learner.updates:
            weights = learner.weights()
            actor.use(forward_with_torch(learner.network, weights), learner.updates)
            self._version = learner.updates
            if self._past.due(actor.env_steps):
                self._opponents.put(self._past.add(weights, actor.env_steps), weights)
        return actor

    def ended(self) -> Episodes:
        """The games that ended since this was last asked."""
        return self._actor.ended()

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._learner = learner

    def missing(self) -> list[int]:
        return []

    def take_all(self) -> PlayedRollout:
        actor = self.newest()
        env_steps, games = actor.env_steps, actor.episodes
        batch = actor.rollout(self._spec.ticks)
        env_steps, games = actor.env_steps - env_steps, actor.episodes - games
        return PlayedRollout(batch, actor.ended(), env_steps, games, self._version)

    def release_all(self) -> None:
        """The batch has arrays of its own."""

    def replace(self, actor: int) -> None:
        """It cannot be frozen while the learner runs."""

    def tend(self) -> None:
        """It lives as long as the learner."""

    def wait(self, timeout_s: float) -> None:
        """It plays when it is asked to."""

    def save(self) -> Tree:
        return {"actor": self._actor.save(), "past": self._past.save(), "version": self._version}

    def load(self, state: Tree) -> None:
        """After the learner was loaded."""
        self._actor.load(state["actor"])
        self._past.load(state["past"])
        self._opponents.forwards.clear()
        for place, weights in enumerate(self._past.weights):
            self._opponents.put(place, weights)
        self._version = state["version"]
        self._actor.use(forward_with_torch(self._learner.network, self._learner.weights()), self._version)

    def close(self) -> None:
        """Nothing was started."""
