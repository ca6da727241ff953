"""sync: n processes play in step, each one rollout with the same version of the weights.

    actor 0 ─► streams 0 … k ──┐
    actor 1 ─► streams k … 2k ─┼─ all there ─► learner ─► board: version v + 1 ─► all actors at once
    actor n ─► …               ┘                 ▲
    store ─ feeder ─► table ─ records ───────────┘  with --from mix

On one machine all write into one ring, each its own streams, so that joining them costs nothing; on a cluster each is
asked once for each version, and answers. Whatever the learner's process does
between two updates (metrics, checkpoints, models), the actors play meanwhile: version v + 1 is out before the turn
ends. A seed says all, whatever the number of actors, as long as none of them dies; and a resumed run learns what an
unbroken one does, bit for bit: a checkpoint has every actor as it was before it played the newest version. All wait
for the slowest; one that takes far longer than any rollout ever did is frozen, and another takes its place.
"""

import time

from sparring.learn.actors.on_policy import WAIT_S, OnPolicyLoop
from sparring.learn.actors.open import open_sync_actors
from sparring.learn.actors.protocol import SyncActors, wait_until
from sparring.learn.actors.weight_publisher import rollout_spec
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Topology
from sparring.store.protocol import Store

SLOTS = 2  # one is written while the turn before is still looked at
FROZEN_S, FROZEN_TIMES = 120.0, 20.0  # nobody plays longer than this and so many times the longest rollout


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner, and actors in step."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    part = rollout_spec(plan, learner, slots=SLOTS, lanes=plan.actors, in_step=True)
    return _Sync(plan, learner, open_sync_actors(plan, part), store)


class _Sync(OnPolicyLoop):
    """One turn: a rollout of every actor, learned as one batch."""

    def __init__(self, plan: Plan, learner: Learner, players: SyncActors, store: Store | None) -> None:
        super().__init__(plan, learner, players, store)
        self.players = players
        self._held = False  # the last turn's batch looks at what was played
        self._asked_s = 0.0  # since when the actors play this version
        self._longest_s = 0.0

    def iterate(self) -> Iteration:
        if not self.begun:
            self.begin()
            self._asked_s = time.monotonic()
        self._release()
        if not wait_until(self.players, lambda: not self.players.missing(), WAIT_S):
            self._replace_the_frozen()
            return Iteration(None, None, None, self.flow())
        self._longest_s = max(self._longest_s, time.monotonic() - self._asked_s)
        self._held = True
        played = self.players.take_all()
        self.count(played)
        turn = self.learned(played)
        self._asked_s = time.monotonic()
        return turn

    def _release(self) -> None:
        """Only now: until the turn was looked at, its batch may have to be kept."""
        if self._held:
            self.players.release_all()
        self._held = False

    def _replace_the_frozen(self) -> None:
        now = time.monotonic()
        if now - self._asked_s > FROZEN_S + FROZEN_TIMES * self._longest_s:
            self._asked_s = now
            for actor in self.players.missing():
                self.players.replace(actor)
