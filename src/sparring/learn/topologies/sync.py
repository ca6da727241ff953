"""sync: n processes play at once, each one rollout with the same version of the weights.

    actor 0 ─► streams 0 … k ──┐
    actor 1 ─► streams k … 2k ─┼─ all there ─► learner ─► weights, version v + 1 ─► all actors at once
    actor n ─► …               ┘                 ▲
    store ─ feeder ─► table ─ records ───────────┘  with --from mix

On one machine all actors write into one ring buffer, each its own streams, so that joining them costs nothing; on a
cluster each is called once for each version. While the learner's process writes metrics, checkpoints and models between
two updates the actors play: version v + 1 is published before the iteration ends. A seed determines everything, for any
number of actors, as long as none of them dies; and a resumed run learns what an unbroken one does, bit for bit: a
checkpoint has every actor as it was before it played the newest version. All wait for the slowest actor; one that takes
far longer than any rollout ever did is frozen, and is replaced.
"""

import time

from sparring.learn.actors import open_sync_actors
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.protocol import SyncActors, wait_until
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Topology
from sparring.learn.topologies.on_policy_loop import WAIT_S, OnPolicyLoop
from sparring.store.protocol import Store

SLOTS = 2  # one is written while the session still looks at the batch in the other
FROZEN_S, FROZEN_TIMES = 120.0, 20.0  # no actor plays longer than this and so many times the longest rollout


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner, and synchronous actors."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    ticks = plan.settings.rollout_ticks
    rollouts = {"feeds": "rollouts", "ticks": ticks, "slots": SLOTS, "writers": plan.actors, "synchronous": True}
    return SyncLoop(plan, learner, open_sync_actors(plan, actor_spec(plan, learner.network, **rollouts)), store)


class SyncLoop(OnPolicyLoop[SyncActors]):
    """One iteration: a rollout of every actor, learned as one batch."""

    def __init__(self, plan: Plan, learner: Learner, actors: SyncActors, store: Store | None) -> None:
        super().__init__(plan, learner, actors, store)
        self._held = False  # the last iteration's batch is still in the ring buffer
        self._published_s = 0.0  # since when the actors play this version
        self._longest_s = 0.0

    def iterate(self) -> Iteration:
        if not self.begun:
            self.begin()
            self._published_s = time.monotonic()
        if self._held:  # only now: the session may have had to write the last batch to a file
            self.actors.release_all()
            self._held = False
        if not wait_until(self.actors, lambda: not self.actors.missing(), WAIT_S):
            self._replace_the_frozen()
            return Iteration(None, None, None, self.flow())
        self._longest_s = max(self._longest_s, time.monotonic() - self._published_s)
        self._held = True
        played = self.actors.take_all()
        self.count(played)
        iteration = self.learn(played)
        self._published_s = time.monotonic()
        return iteration

    def _replace_the_frozen(self) -> None:
        now = time.monotonic()
        if now - self._published_s > FROZEN_S + FROZEN_TIMES * self._longest_s:
            self._published_s = now
            for actor in self.actors.missing():
                self.actors.replace(actor)
