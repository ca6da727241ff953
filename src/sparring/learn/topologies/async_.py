"""async: n processes play with the newest weights there are, and the learner never waits for the slowest.

    actor 0 ─► ring ─┐
    actor 1 ─► ring ─┼─ oldest first ─► learner ─► board of weights ─► every actor, before its next rollout
    actor n ─► ring ─┘                     ▲
    store ─ feeder ─► table ─ records ─────┘  with --from mix

An actor is at most two rollouts ahead: on one machine its ring in shared memory has two slots, on a cluster two calls
are under way; one is learned from or waits while the other is written, and an actor that is ahead sleeps.
So what is learned is a few updates old ("staleness_updates"), which V-trace and a clipped ratio are made for; what is
older than any healthy actor can be (it was frozen) is counted and not learned from. Who plays when is a matter of the
clock: a resumed run has its weights, optimiser and counters whole, and goes on with games begun anew.
"""

from sparring.learn.actors.on_policy import WAIT_S, OnPolicyLoop
from sparring.learn.actors.open import open_async_actors
from sparring.learn.actors.protocol import AsyncActors, wait_until
from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.actors.weight_publisher import rollout_spec
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Topology
from sparring.store.protocol import Store

SLOTS = 2
STALEST_ROUNDS = 4  # a rollout older than so many of every actor's rings is not learned from


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner, and actors that play at their own pace."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    part = rollout_spec(plan, learner, slots=SLOTS, lanes=1, in_step=False)
    return _Async(plan, learner, open_async_actors(plan, part), store)


class _Async(OnPolicyLoop):
    """One turn: the oldest rollout that waits, learned from."""

    def __init__(self, plan: Plan, learner: Learner, players: AsyncActors[PlayedRollout], store: Store | None) -> None:
        super().__init__(plan, learner, players, store)
        self.players = players
        self.stalest = STALEST_ROUNDS * SLOTS  # updates, for each actor
        self._held: int | None = None  # whose rollout the last turn's batch looks at
        self._last = 0  # who was learned from last
        self._refused = 0

    def iterate(self) -> Iteration:
        self.begin()
        self._release()
        wait_until(self.players, lambda: self._oldest() is not None, WAIT_S)
        actor = self._oldest()
        if actor is None:
            return Iteration(None, None, None, self.flow())
        self._held = self._last = actor
        played = self.players.take(actor)
        self.count(played)
        if self.learner.updates - played.version > self.stalest * self.players.actors:
            self._refused += 1
            return Iteration(None, None, played.episodes, self.flow())
        return self.learned(played)

    def flow(self) -> dict[str, float]:
        waiting = sum(map(self.players.waiting, range(self.players.actors)))
        return super().flow() | {"rollouts_waiting": waiting, "rollouts_refused": self._refused}

    def close(self) -> None:
        super().close()
        self._held = None

    def _release(self) -> None:
        """Only now: until the turn was looked at, its batch may have to be kept."""
        if self._held is not None:
            self.players.release(self._held)
        self._held = None

    def _oldest(self) -> int | None:
        """Who waits with the oldest weights; among equals the next in turn."""
        actors = self.players.actors
        waiting = [actor for actor in range(actors) if self.players.waiting(actor)]
        return min(
            waiting,
            key=lambda actor: (self.players.version(actor), (actor - self._last - 1) % actors),
            default=None,
        )
