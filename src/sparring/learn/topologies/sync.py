"""sync: n processes play at once, each one rollout with the same version of the weights.

    actor 0 ─► streams 0 … k ──┐
    actor 1 ─► streams k … 2k ─┼─ all there ─► learner ─► weights, version v + 1 ─► all actors at once
    actor n ─► …               ┘                 ▲
    store ─ feeder ─► table ─ records ───────────┘  with --from mix

While the learner's process writes metrics, checkpoints and models between
two updates the actors play: version v + 1 is published before the iteration ends. A seed determines everything, for any
number of actors, as long as none of them dies; and a resumed run learns what an unbroken one does, bit for bit: a
checkpoint has every actor as it was before it played the newest version. All wait for the slowest actor; one that takes
far longer than any rollout ever did is frozen, and is replaced.
"""

import time
from collections import Counter
from dataclasses import replace

from sparring.errors import ConfigError
from sparring.learn.actors import open_actors
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.experience import PlayedRollout
from sparring.learn.actors.protocol import Actors, wait_until
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources, Topology
from sparring.learn.replay.local import LocalReplay
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

WAIT_S = 0.5  # of one iteration for actors: then the session looks at its limits again
FROZEN_S, FROZEN_TIMES = 120.0, 20.0  # no actor plays longer than this and so many times the longest rollout


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner, and synchronous actors."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    ticks = plan.settings.rollout_ticks
    spec = actor_spec(plan, learner.network, feeds="rollouts", ticks=ticks, slots=1, synchronous=True)
    return SyncLoop(plan, learner, open_actors(plan, spec), store)


class OnPolicyLoop:
    """Learning from fresh trajectories: what single, sync, async and central have in common.

    A learner, its actors (started by the first iteration), and the counters of the run.
    """

    def __init__(self, plan: Plan, learner: Learner, actors: Actors, store: Store | None) -> None:
        self.plan, self.learner, self.actors = plan, learner, actors
        # The store's records beside each rollout, with --from mix; the learner's own process samples them.
        if store is not None and learner.network.memory is not None:
            wrong = "steps of the store do not record the state of a recurrent network"
            raise ConfigError(wrong, where=f"network of {plan.algo}", do="Leave out its memory, or --from mix")
        self.records = None if store is None else LocalReplay(plan, learner.network, 0, store, actors=1)
        self.begun = False
        self.env_steps = 0  # of rollouts that arrived: what a dead actor did not hand over is never counted
        self.steps_elsewhere = 0  # of the same run, by other processes that learn: hogwild, allreduce
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
        batch = played.batch
        if self.records is not None and self.records.feeder is not None:
            self.records.feeder.feed(self.plan.settings.records_steps)
            if self.records.ready():
                batch = replace(batch, records=self.records.sample()[0])
        stale = self.learner.updates - played.version
        self.learner.steps = self.position + self.steps_elsewhere
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
        return self.actors.flow()

    def sources(self) -> Sources:
        steps = Counter({"selfplay": self.selfplay})
        if self.records is None or self.records.feeder is None:
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


class SyncLoop(OnPolicyLoop):
    """One iteration: a rollout of every actor, learned as one batch."""

    def __init__(self, plan: Plan, learner: Learner, actors: Actors, store: Store | None) -> None:
        super().__init__(plan, learner, actors, store)
        self._published_s = 0.0  # since when the actors play this version
        self._longest_s = 0.0

    def iterate(self) -> Iteration:
        if not self.begun:
            self.begin()
            self._published_s = time.monotonic()
        if not wait_until(self.actors, lambda: not self._missing(), WAIT_S):
            self._replace_the_frozen()
            return Iteration(None, None, None, self.flow())
        self._longest_s = max(self._longest_s, time.monotonic() - self._published_s)
        played = self.actors.take_all()
        self.count(played)
        iteration = self.learn(played)
        self._published_s = time.monotonic()
        return iteration

    def _missing(self) -> list[int]:
        """Those that have not played the newest version yet."""
        return [actor for actor in range(self.actors.actors) if not self.actors.waiting(actor)]

    def _replace_the_frozen(self) -> None:
        now = time.monotonic()
        if now - self._published_s > FROZEN_S + FROZEN_TIMES * self._longest_s:
            self._published_s = now
            for actor in self._missing():
                self.actors.replace(actor)
