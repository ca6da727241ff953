"""single: the learner's own process plays.

    sim    actor ─► table ─ rate limiter ─► learner ─► actor    where the algorithm is fed with transitions or sequences
           actor ─► rollout ──────────────► learner ─► actor    where it is fed with trajectories
    mix    store ─ feeder ─► table                              beside either of them

Everything happens in turn in one thread, so a seed determines everything: for debugging and for small games.
"""

from collections.abc import Callable

import numpy as np

from sparring.acting.actor import NO_EPISODES, Actor, Episodes
from sparring.acting.opponents import PastSelves
from sparring.games.protocol import Game
from sparring.learn.actors.actor_spec import ActorSpec, actor_spec
from sparring.learn.actors.experience import PlayedRollout
from sparring.learn.actors.protocol import PAST_SELVES, Actors
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Topology
from sparring.learn.replay.local import InsertedBlock, LocalReplay
from sparring.learn.topologies.apex import ReplayLoop
from sparring.learn.topologies.sync import SyncLoop
from sparring.nets import delta_conv
from sparring.nets.forward import forward_for_matches, forward_with_torch
from sparring.replay.steps import Steps
from sparring.replay.table import check_sources
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

FILLING_TICKS = 64  # of one iteration while nothing can be sampled yet


def build(plan: Plan, store: Store | None) -> Topology:
    """Learner and actor; a table, with a rate limiter, for transitions; a feeder where the store is mixed in."""
    delta_conv.enable(plan.delta_conv)  # workers of hogwild and learners of allreduce begin here
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    if plan.algorithm.feeds == "trajectories":
        ticks = plan.settings.rollout_ticks
        spec = actor_spec(plan, learner.network, feeds="rollouts", ticks=ticks, slots=1)
        return SyncLoop(plan, learner, InProcessActor(spec, learner, epsilon=plan.algorithm.exploration), store)
    check_sources(plan.replay, records=store is not None)
    spec = actor_spec(plan, learner.network, feeds="steps", ticks=1, slots=1)
    actor = InProcessActor(spec, learner)
    replay = LocalReplay(plan, learner.network, spec.streams, store, actors=1, masks=actor.masks)
    return SingleReplay(plan, learner, actor, replay, spec.streams)


class InProcessActor(Actors):
    """The learner's own process as the one actor: nothing is played ahead, so that a seed determines everything."""

    def __init__(
        self,
        spec: ActorSpec,
        learner: Learner,
        game: Game | None = None,
        epsilon: Callable[[Learner, int], float] = lambda learner, env_steps: 0.0,
    ) -> None:
        """`game`: the spec's own where none is given. `epsilon`: that rollouts explore with, after so many steps."""
        self._spec, self._learner, self._epsilon = spec, learner, epsilon
        self._forward = forward_with_torch if spec.search is None else forward_for_matches
        self._actor, self._opponents = spec.open_actor(learner.weights(), game=game, forward=self._forward)
        self._past = PastSelves(spec.past, np.random.default_rng([spec.seed, PAST_SELVES]))
        self._version = 0  # updates of the weights that the actor plays with
        self.masks = self._actor.masks

    def newest(self) -> Actor:
        """The actor with the learner's newest weights."""
        learner, actor = self._learner, self._actor
        if self._version != learner.updates:
            weights = learner.weights()
            actor.use(self._forward(learner.network, weights), learner.updates)
            self._version = learner.updates
            if self._past.due(actor.env_steps):
                self._opponents.put(self._past.add(weights, actor.env_steps), weights)
        return actor

    def ended(self) -> Episodes:
        """The games that ended since this was last asked."""
        return self._actor.ended()

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._learner = learner

    def take_all(self) -> PlayedRollout:
        actor = self.newest()
        env_steps, games = actor.env_steps, actor.episodes
        batch = actor.rollout(self._spec.ticks, epsilon=self._epsilon(self._learner, env_steps))
        env_steps, games = actor.env_steps - env_steps, actor.episodes - games
        return PlayedRollout(batch, actor.ended(), env_steps, games, self._version)

    def close(self) -> None:
        self._opponents.close()

    def save(self) -> Tree:
        return {"actor": self._actor.save(), "past": self._past.save(), "version": self._version}

    def load(self, state: Tree) -> None:
        """After the learner was loaded."""
        self._actor.load(state["actor"])
        self._past.load(state["past"])
        if self._past.size:
            self._opponents.forwards.clear()
        for place, weights in enumerate(self._past.weights):
            self._opponents.put(place, weights)
        self._version = state["version"]
        self._actor.use(self._forward(self._learner.network, self._learner.weights()), self._version)


class SingleReplay(ReplayLoop):
    """One iteration: play until the rate limiter lets a batch through, then learn it."""

    def __init__(self, plan: Plan, learner: Learner, actor: InProcessActor, replay: LocalReplay, streams: int) -> None:
        super().__init__(plan, learner, replay, streams)
        self.actor, self._table = actor, replay

    def iterate(self) -> Iteration:
        for _ in range(FILLING_TICKS):
            if self.sampling_is_due() and (iteration := self.learn(self.actor.ended())) is not None:
                self.actor.publish(self.learner, self.env_steps)
                return iteration
            self._play()
        return Iteration(None, None, self.actor.ended(), self.flow())

    def sampling_is_due(self) -> bool:
        """In one thread neither side waits: sample what is owed, and otherwise play, unless the limiter says no."""
        if not self.may_sample():
            return False
        limiter = self.rate_limiter
        return limiter.owed() >= self._batch_steps or not limiter.may_insert(self._insert_steps)

    def _play(self) -> None:
        actor = self.actor.newest()
        env_steps, games = actor.env_steps, actor.episodes
        steps = actor.step(self.plan.algorithm.exploration(self.learner, env_steps))
        self.insert(steps, actor.env_steps - env_steps, actor.episodes - games)

    def insert(self, steps: Steps, env_steps: int, games: int) -> None:
        """What was played."""
        fed = self._table.insert_steps(steps)
        self.count(InsertedBlock(NO_EPISODES, env_steps, games, len(steps), fed))

    def close(self) -> None:
        super().close()
        self.actor.close()

    def save(self) -> Tree:
        return super().save() | {"actor": self.actor.save()}

    def load(self, state: Tree) -> None:
        super().load(state)
        self.actor.load(state["actor"])
        if not self.plan.spec.resimulates or self.plan.league:
            self.replay.break_off(0)  # its games have started again: nothing follows what came last
