"""async: n processes play with the newest weights there are, and the learner never waits for the slowest.

    actor 0 ─► ring buffer ─┐
    actor 1 ─► ring buffer ─┼─ oldest first ─► learner ─► weights ─► every actor, before its next rollout
    actor n ─► ring buffer ─┘                     ▲
    store ─ feeder ─► table ─ records ────────────┘  with --from mix

An actor is at most two rollouts ahead: on one machine its ring buffer has two slots, on a cluster two calls pend;
one is learned from or waits while the other is written, and an actor that is ahead sleeps. So what is learned is a few
updates old ("staleness_updates"), which V-trace and a clipped ratio are made for; what is older than any healthy actor
can be (it was frozen) is counted and not learned from. The clock decides who plays when: a resumed run has its weights,
optimiser and counters whole, and goes on with new games.
"""

from sparring.learn.actors import open_actors
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.experience import played
from sparring.learn.actors.protocol import Actors, wait_until
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Topology
from sparring.learn.topologies.sync import WAIT_S, OnPolicyLoop
from sparring.store.protocol import Store

SLOTS = 2
STALEST_ROUNDS = 4  # a rollout older than so many of every actor's ring buffers is not learned from


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner, and actors that play at their own pace."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    spec = actor_spec(plan, learner.network, feeds="rollouts", ticks=plan.settings.rollout_ticks, slots=SLOTS)
    return AsyncLoop(plan, learner, open_actors(plan, spec), store)


class AsyncLoop(OnPolicyLoop):
    """One iteration: the oldest rollout that waits, learned from. Also for central, which has one actor."""

    def __init__(self, plan: Plan, learner: Learner, actors: Actors, store: Store | None) -> None:
        super().__init__(plan, learner, actors, store)
        self.stalest = STALEST_ROUNDS * SLOTS  # updates, for each actor
        self._held: int | None = None  # the actor whose slot holds the last iteration's batch
        self._last = 0  # the actor that was learned from last
        self._refused = 0

    def iterate(self) -> Iteration:
        self.begin()
        if self._held is not None:  # only now: the session may have had to write the last batch to a file
            self.actors.release(self._held)
            self._held = None
        wait_until(self.actors, lambda: self._oldest() is not None, WAIT_S)
        actor = self._oldest()
        if actor is None:
            return Iteration(None, None, None, self.flow())
        self._held = self._last = actor
        rollout = played(self.actors.take(actor))
        self.count(rollout)
        if self.learner.updates - rollout.version > self.stalest * self.actors.actors:
            self._refused += 1
            return Iteration(None, None, rollout.episodes, self.flow())
        return self.learn(rollout)

    def flow(self) -> dict[str, float]:
        waiting = sum(map(self.actors.waiting, range(self.actors.actors)))
        return super().flow() | {"rollouts_waiting": waiting, "rollouts_refused": self._refused}

    def _oldest(self) -> int | None:
        """The actor that waits with the oldest weights; among equals the next in turn."""
        count, actors = self.actors.actors, self.actors
        waiting = [actor for actor in range(count) if actors.waiting(actor)]
        return min(waiting, key=lambda actor: (actors.version(actor), (actor - self._last - 1) % count), default=None)
