"""central: environments alone play; one service decides for all of them, in batches (SEED RL, Espeholt 2020).

    environments 0 ─┐  what they see     ┌──────────────┐ ─ rollouts ─► learner
    environments 1 ─┼──────────────────► │ inference    │                  │
    environments n ─┘ ◄───────── actions │ trajectories │ ◄─── weights ────┘
                                         │ states       │
                                         └──────────────┘

Weights go to one place and observations to where they are, so a worker needs neither a network nor its memory.
Trajectories, recurrent states and stacks of frames are kept by the service, for each environment. Newer weights decide
from the next tick on, also within a rollout; each step has the log-probability with which it was chosen, and a rollout
the oldest version in it ("staleness_updates"). Two whole rollouts may wait, then workers are held. A resumed run has
its weights, optimiser and counters whole, and goes on with games begun anew. For an algorithm that replays, the
service hands over blocks of steps instead, and the learner has a table, as in apex.
"""

import dataclasses

from msgspec.structs import replace

from sparring.errors import ConfigError
from sparring.learn.actors.central import CentralActors
from sparring.learn.actors.on_policy import WAIT_S, OnPolicyLoop
from sparring.learn.actors.protocol import wait_until
from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.actors.step_blocks import StepBlock
from sparring.learn.actors.weight_publisher import rollout_spec
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Topology
from sparring.learn.replay.local import LocalReplay
from sparring.learn.topologies.apex import BLOCK_TICKS, block_spec, replay_topology
from sparring.store.protocol import Store

SLOTS = 1  # of whole rollouts that wait in the service; one more waits with the learner


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner, inference, and workers with environments; they start with the first turn."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    if plan.algorithm.feeds != "trajectories":
        return _replaying(plan, learner, store)
    part = rollout_spec(plan, learner, slots=SLOTS, lanes=1, in_step=False)
    return _Central(plan, learner, CentralActors(plan, part), store)


def _replaying(plan: Plan, learner: Learner, store: Store | None) -> Topology:
    """Inference as the one actor of a learner with a table, which explores as the algorithm says."""
    if plan.replay.shards > 0:
        do = "Set replay.shards to 0, or use --topology apex"
        raise ConfigError("central replays from one table, the learner's", where="[replay] shards", do=do)
    # Priorities begin as the table has them; a block of all environments is as large as one of an actor's.
    part = replace(block_spec(plan, learner), n_steps=0, ticks=max(1, BLOCK_TICKS // plan.actors))
    whole = replace(part, envs=plan.actors * plan.envs)
    alone = dataclasses.replace(plan, actors=1, envs=whole.envs)
    served: CentralActors[StepBlock] = CentralActors(plan, part)
    return replay_topology(alone, learner, served, LocalReplay(alone, whole, store), whole)


class _Central(OnPolicyLoop):
    """One turn: the oldest whole rollout, learned from."""

    def __init__(self, plan: Plan, learner: Learner, served: CentralActors[PlayedRollout], store: Store | None) -> None:
        super().__init__(plan, learner, served, store)
        self.served = served

    def iterate(self) -> Iteration:
        self.begin()
        if not wait_until(self.served, lambda: self.served.waiting() > 0, WAIT_S):
            return Iteration(None, None, None, self.flow())
        played = self.served.take()
        self.count(played)
        return self.learned(played)

    def flow(self) -> dict[str, float]:
        crew = self.served
        return super().flow() | {
            "inference_restarts": crew.inference_restarts,
            "environments_per_forward": crew.served,
            "rollouts_waiting": crew.waiting(),
        }
