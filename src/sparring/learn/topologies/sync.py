"""sync: n processes play in step, each one rollout with the same version of the weights.

    actor 0 ─► streams 0 … k ──┐
    actor 1 ─► streams k … 2k ─┼─ all there ─► learner ─► board: version v + 1 ─► all actors at once
    actor n ─► …               ┘                 ▲
    store ─ feeder ─► table ─ records ───────────┘  with --from mix

All write into one ring, each its own streams, so that joining them costs nothing. Whatever the learner's process does
between two updates (metrics, checkpoints, models), the actors play meanwhile: version v + 1 is out before the turn
ends. A seed says all, whatever the number of actors, as long as none of them dies; and a resumed run learns what an
unbroken one does, bit for bit: a checkpoint has every actor as it was before it played the newest version. All wait
for the slowest; one that takes far longer than any rollout ever did is frozen, and another takes its place.
"""

import time

from msgspec.structs import replace

from sparring.learn.crew.leader import rollout_part
from sparring.learn.crew.part import Part
from sparring.learn.crew.process import Call, Crew, Launch
from sparring.learn.crew.trajectories import WAIT_S, CrewLearning
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.learn.topologies import Turn, Wiring
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

SLOTS = 2  # one is written while the turn before is still looked at
FROZEN_S, FROZEN_TIMES = 120.0, 20.0  # nobody plays longer than this and so many times the longest rollout


def wire(plan: Plan, store: Store | None) -> Wiring:
    """A learner, a board, and one ring in which every actor has a lane."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    part = rollout_part(plan, learner, slots=SLOTS, lanes=plan.actors, in_step=True)
    return _Sync(plan, learner, part, store)


class _Sync(CrewLearning):
    """One turn: a rollout of every actor, learned as one batch."""

    def __init__(self, plan: Plan, learner: Learner, part: Part, store: Store | None) -> None:
        super().__init__(plan, learner, part, store)
        self._rollouts = part.open_rollouts()
        self._held = False  # the last turn's batch looks at a slot
        self._states: list[bytes] = [b""] * plan.actors  # of actors that are not started yet
        self._asked_s = 0.0  # since when the actors play this version
        self._longest_s = 0.0

    def turn(self) -> Turn:
        if self.crew is None:
            self.leader.publish(self.learner, self.env_steps)
            self.crew = Crew(self.plan.actors, self._launch, self.generation)
            self._states = [b""] * self.plan.actors
            self._asked_s = time.monotonic()
        self._release()
        if not self.crew.wait_until(self._all_there, WAIT_S):
            self._replace_the_frozen(self.crew)
            return Turn(None, None, None, self.flow())
        self._longest_s = max(self._longest_s, time.monotonic() - self._asked_s)
        self._held = True
        played = self._rollouts.take_all()
        self.count(played)
        turn = self.learned(played)
        self._asked_s = time.monotonic()
        return turn

    def save(self) -> Tree:
        states = self._states if self.crew is None else self.crew.ask(self.leader.board.version)
        return super().save() | {"actors": states}

    def load(self, state: Tree) -> None:
        super().load(state)
        self._states = list(state["actors"])

    def close(self) -> None:
        super().close()
        self._rollouts.ring.close()

    def _launch(self, call: Call) -> Launch:
        """The same lane again: whoever wrote it is dead, and what it left there is forgotten."""
        ring = self._rollouts.ring
        ring.rewind(call.actor)
        board, descriptor = self.leader.board.block.descriptor, ring.block.descriptor
        part = replace(
            self.part,
            actor=call.actor,
            lane=call.actor,
            generation=call.generation,
            state=self._states[call.actor],
            board=board,
            ring=descriptor,
            bell=call.bell,
        )
        return Launch(part.told(), (board, descriptor))

    def _release(self) -> None:
        """Only now: until the turn was looked at, its batch may have to be kept."""
        if self._held:
            for lane in range(self.plan.actors):
                self._rollouts.ring.release(lane)
        self._held = False

    def _all_there(self) -> bool:
        return not self._missing()

    def _missing(self) -> list[int]:
        return [lane for lane in range(self.plan.actors) if not self._rollouts.ring.ready(lane)]

    def _replace_the_frozen(self, crew: Crew) -> None:
        now = time.monotonic()
        if now - self._asked_s > FROZEN_S + FROZEN_TIMES * self._longest_s:
            self._asked_s = now
            for lane in self._missing():
                crew.replace(lane)
