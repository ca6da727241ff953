"""Learning trajectories that a crew plays: what "sync" and "async" have in common."""

from collections import Counter
from dataclasses import replace

import numpy as np

from sparring.learn.actors.protocol import Actors
from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.algorithms.feeds import TrajectoryFeed
from sparring.learn.plan import Plan
from sparring.learn.protocol import Batch, Iteration, Learner, Sources
from sparring.replay.feeder import Feeder
from sparring.replay.table import open_table
from sparring.store.protocol import Store
from sparring.wire.tree import Tree, rng_state, set_rng_state

WAIT_S = 0.5  # of one turn for actors: then the session looks at its limits again
_SAMPLING, _FEEDING = 2, 3  # of the streams of chance that a seed has


class StoreRecords:
    """The store's records beside each rollout, with --from mix; drawn in the learner's own process."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._feed: TrajectoryFeed = plan.settings
        seat = plan.spec.seats[0]
        masks = seat.action.masks > 0
        self._table = open_table(seat, plan.replay, streams=1, masks=masks, frame_stack=plan.spec.frame_stack)
        self.feeder = Feeder(store, plan.spec, self._table, 0, np.random.default_rng([plan.seed, _FEEDING]))
        self._rng = np.random.default_rng([plan.seed, _SAMPLING])

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


class OnPolicyLoop:
    """A learner, those who play for it (from the first turn on), and where the run stands."""

    def __init__(self, plan: Plan, learner: Learner, players: Actors, store: Store | None) -> None:
        self.plan, self.learner, self._crew = plan, learner, players
        self.records = None if store is None else StoreRecords(plan, store)
        self.begun = False
        self.env_steps = 0  # that were handed over: what a dead actor did not hand over was never counted
        self.episodes = 0
        self.selfplay = 0  # steps learned from

    @property
    def position(self) -> int:
        return self.env_steps

    def begin(self) -> None:
        """Before the first turn: who plays is started."""
        if not self.begun:
            self._crew.publish(self.learner, self.env_steps)
            self.begun = True

    def learned(self, played: PlayedRollout) -> Iteration:
        """One update with what was played, and its weights for everyone."""
        batch = played.batch if self.records is None else self.records.beside(played.batch)
        stale = self.learner.updates - played.version
        update = self.plan.algorithm.update(self.learner, batch)
        self.learner = update.learner
        self.selfplay += int(batch.reward.size if batch.mask is None else batch.mask.sum())
        self._crew.publish(self.learner, self.env_steps)
        return Iteration(update, batch, played.episodes, self.flow() | {"staleness_updates": stale})

    def count(self, played: PlayedRollout) -> None:
        """What was handed over, learned from or not."""
        self.env_steps += played.env_steps
        self.episodes += played.games

    def flow(self) -> dict[str, float]:
        """How the crew stands."""
        return {"actors": self._crew.actors, "actor_restarts": self._crew.restarts}

    def sources(self) -> Sources:
        steps = Counter({"selfplay": self.selfplay})
        if self.records is None:
            return Sources(dict(steps), None)
        return Sources(dict(steps + self.records.feeder.steps), self.records.feeder.until_ms)

    def close(self) -> None:
        """Stop who plays and give the memory back."""
        self._crew.close()

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "players": self._crew.save(),
            "records": None if self.records is None else self.records.save(),
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "selfplay": self.selfplay,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        self._crew.load(state["players"])
        if self.records is not None:
            self.records.load(state["records"])
        self.selfplay = state["selfplay"]
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
