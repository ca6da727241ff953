"""Learning from fresh trajectories: what single, sync, async and central have in common."""

from collections import Counter
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from sparring.learn.actors.protocol import Actors
from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.algorithms.feeds import TrajectoryFeed
from sparring.learn.plan import Plan
from sparring.learn.protocol import Batch, Iteration, Learner, Sources
from sparring.learn.replay.local import FEEDING, SAMPLING, open_replay_table
from sparring.replay.feeder import Feeder
from sparring.store.protocol import Store
from sparring.wire.network import NetworkSpec
from sparring.wire.tree import Tree, rng_state, set_rng_state

WAIT_S = 0.5  # of one iteration for actors: then the session looks at its limits again

A = TypeVar("A", bound=Actors)


class StoreRecords:
    """The store's records beside each rollout, with --from mix; the learner's own process samples them."""

    def __init__(self, plan: Plan, network: NetworkSpec, store: Store) -> None:
        self._feed: TrajectoryFeed = plan.settings
        self._table = open_replay_table(plan, network, plan.replay.capacity_steps, 1)
        self.feeder = Feeder(store, plan.spec, self._table, 0, np.random.default_rng([plan.seed, FEEDING]))
        self._rng = np.random.default_rng([plan.seed, SAMPLING])

    def beside(self, batch: Batch) -> Batch:
        """The batch with records, as soon as there are any."""
        feed = self._feed
        self.feeder.feed(feed.records_steps)
        if not self._table.ready:
            return batch
        records, _ = self._table.sample(
            feed.records_steps, self._rng, n_steps=feed.records_n_steps, discount=feed.discount
        )
        return replace(batch, records=records)

    def save(self) -> Tree:
        return {"table": self._table.save(), "feeder": self.feeder.save(), "rng": rng_state(self._rng)}

    def load(self, state: Tree) -> None:
        self._table.load(state["table"])
        self.feeder.load(state["feeder"])
        set_rng_state(self._rng, state["rng"])


class OnPolicyLoop(Generic[A]):
    """A learner, its actors (started by the first iteration), and the counters of the run."""

    def __init__(self, plan: Plan, learner: Learner, actors: A, store: Store | None) -> None:
        self.plan, self.learner, self.actors = plan, learner, actors
        self.records = None if store is None else StoreRecords(plan, learner.network, store)
        self.begun = False
        self.env_steps = 0  # of rollouts that arrived: what a dead actor did not hand over is never counted
        self.episodes = 0
        self.selfplay = 0  # steps learned from

    @property
    def position(self) -> int:
        return self.env_steps

    def begin(self) -> None:
        """Start the actors, in the first iteration."""
        if not self.begun:
            self.actors.publish(self.learner, self.env_steps)
            self.begun = True

    def learn(self, played: PlayedRollout) -> Iteration:
        """One update with what was played; the actors get its weights."""
        batch = played.batch if self.records is None else self.records.beside(played.batch)
        stale = self.learner.updates - played.version
        update = self.plan.algorithm.update(self.learner, batch)
        self.learner = update.learner
        self.selfplay += int(batch.reward.size if batch.mask is None else batch.mask.sum())
        self.actors.publish(self.learner, self.env_steps)
        return Iteration(update, batch, played.episodes, self.flow() | {"staleness_updates": stale})

    def count(self, played: PlayedRollout) -> None:
        """Count a rollout that arrived, learned from or not."""
        self.env_steps += played.env_steps
        self.episodes += played.games

    def flow(self) -> dict[str, float]:
        """How the actors do."""
        return {"actors": self.actors.actors, "actor_restarts": self.actors.restarts}

    def sources(self) -> Sources:
        steps = Counter({"selfplay": self.selfplay})
        if self.records is None:
            return Sources(dict(steps), None)
        return Sources(dict(steps + self.records.feeder.steps), self.records.feeder.until_ms)

    def close(self) -> None:
        """Stop the actors and give the memory back."""
        self.actors.close()

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "actors": self.actors.save(),
            "records": None if self.records is None else self.records.save(),
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "selfplay": self.selfplay,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        self.actors.load(state["actors"])
        if self.records is not None:
            self.records.load(state["records"])
        self.selfplay = state["selfplay"]
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
