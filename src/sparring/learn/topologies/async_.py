"""async: n processes play with the newest weights there are, and the learner never waits for the slowest.

    actor 0 ─► ring ─┐
    actor 1 ─► ring ─┼─ oldest first ─► learner ─► board of weights ─► every actor, before its next rollout
    actor n ─► ring ─┘                     ▲
    store ─ feeder ─► table ─ records ─────┘  with --from mix

A ring has two slots: one is learned from or waits while the other is written, and an actor whose ring is full sleeps.
So what is learned is a few updates old ("staleness_updates"), which V-trace and a clipped ratio are made for; what is
older than any healthy actor can be (it was frozen) is counted and not learned from. Who plays when is a matter of the
clock: a resumed run has its weights, optimiser and counters whole, and goes on with games begun anew.
"""

from msgspec.structs import replace

from sparring.learn.crew.leader import rollout_part
from sparring.learn.crew.part import Part
from sparring.learn.crew.process import Call, Crew, Launch
from sparring.learn.crew.rollouts import Rollouts
from sparring.learn.crew.trajectories import WAIT_S, CrewLearning
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.learn.topologies import Turn, Wiring
from sparring.store.protocol import Store

SLOTS = 2
STALEST_ROUNDS = 4  # a rollout older than so many of every actor's rings is not learned from


def wire(plan: Plan, store: Store | None) -> Wiring:
    """A learner, a board, and for each actor a ring."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    part = rollout_part(plan, learner, slots=SLOTS, lanes=1, in_step=False)
    return _Async(plan, learner, part, store)


class _Async(CrewLearning):
    """One turn: the oldest rollout that waits, learned from."""

    def __init__(self, plan: Plan, learner: Learner, part: Part, store: Store | None) -> None:
        super().__init__(plan, learner, part, store)
        self.stalest = STALEST_ROUNDS * SLOTS * plan.actors
        self._rings: dict[int, Rollouts] = {}
        self._held: int | None = None  # whose slot the last turn's batch looks at
        self._last = 0  # who was learned from last
        self._refused = 0

    def turn(self) -> Turn:
        if self.crew is None:
            self.leader.publish(self.learner, self.env_steps)
            self.crew = Crew(self.plan.actors, self._launch, self.generation)
        self._release()
        self.crew.wait_until(lambda: self._oldest() is not None, WAIT_S)
        actor = self._oldest()
        if actor is None:
            return Turn(None, None, None, self.flow())
        self._held = self._last = actor
        played = self._rings[actor].take()
        self.count(played)
        if self.learner.updates - played.version > self.stalest:
            self._refused += 1
            return Turn(None, None, played.episodes, self.flow())
        return self.learned(played)

    def flow(self) -> dict[str, float]:
        waiting = sum(ring.ring.ready() for ring in self._rings.values())
        return super().flow() | {"rollouts_waiting": waiting, "rollouts_refused": self._refused}

    def close(self) -> None:
        super().close()
        for ring in self._rings.values():
            ring.ring.close()
        self._rings, self._held = {}, None

    def _launch(self, call: Call) -> Launch:
        """A fresh ring for whoever is started: what a dead one left in its own is lost, and was never counted."""
        if self._held == call.actor:
            self._held = None
        if (old := self._rings.pop(call.actor, None)) is not None:
            old.ring.close()
        ring = self._rings[call.actor] = self.part.open_rollouts()
        board, ring_descriptor = self.leader.board.block.descriptor, ring.ring.block.descriptor
        part = replace(
            self.part,
            actor=call.actor,
            generation=call.generation,
            board=board,
            ring=ring_descriptor,
            bell=call.bell,
        )
        return Launch(part.told(), (board, ring_descriptor))

    def _release(self) -> None:
        """Only now: until the turn was looked at, its batch may have to be kept."""
        if self._held is not None and self.crew is not None:
            self._rings[self._held].ring.release()
            self.crew.ring(self._held)
        self._held = None

    def _oldest(self) -> int | None:
        """Who waits with the oldest weights; among equals the next in turn."""
        actors = len(self._rings)
        waiting = [actor for actor, ring in self._rings.items() if ring.ring.ready()]
        return min(
            waiting,
            key=lambda actor: (self._rings[actor].waiting_version(), (actor - self._last - 1) % actors),
            default=None,
        )
