"""central: workers only step environments; one service decides for all of them, in batches (SEED RL, Espeholt 2020).

    environments 0 ─┐  what they see     ┌──────────────┐ ─ rollouts ─► learner
    environments 1 ─┼──────────────────► │ inference    │                  │
    environments n ─┘ ◄───────── actions │ trajectories │ ◄─── weights ────┘
                                         │ states       │
                                         └──────────────┘

Weights go to the inference service alone, and workers send it their observations, so a worker needs no network. The
service has the trajectory, recurrent state and stack of frames of each environment. Newer weights decide from the next
tick on, also within a rollout; each step has the log-probability with which it was chosen, and a rollout the oldest
version in it ("staleness_updates"). Two whole rollouts may wait, then workers are held. A resumed run has its weights,
optimiser and counters whole, and goes on with new games. For an algorithm with replay, the service hands over blocks of
steps instead, and the learner has a table, as in apex.
"""

import dataclasses

from msgspec.structs import replace

from sparring.errors import ConfigError
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.remote import CentralActors
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner, Topology
from sparring.learn.replay.local import LocalReplay
from sparring.learn.topologies.apex import BLOCK_TICKS, ApexLoop, block_spec
from sparring.learn.topologies.async_ import AsyncLoop
from sparring.store.protocol import Store

SLOTS = 1  # of whole rollouts that wait in the service; one more waits with the learner


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner, inference, and workers with environments; they start with the first iteration."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    if plan.algorithm.feeds != "trajectories":
        return _with_replay(plan, learner, store)
    spec = actor_spec(plan, learner.network, feeds="rollouts", ticks=plan.settings.rollout_ticks, slots=SLOTS)
    return AsyncLoop(plan, learner, CentralActors(plan, spec), store)


def _with_replay(plan: Plan, learner: Learner, store: Store | None) -> Topology:
    """Inference as the one actor of a learner with a table, which explores as the algorithm says."""
    if plan.replay.shards > 0:
        do = "Set replay.shards to 0, or use --topology apex"
        raise ConfigError("central replays from one table, the learner's", where="[replay] shards", do=do)
    # The table sets first priorities; a block of all environments is as large as one of an actor's.
    spec = replace(block_spec(plan, learner), n_steps=0, ticks=max(1, BLOCK_TICKS // plan.actors))
    whole = replace(spec, envs=plan.actors * plan.envs)
    actors = CentralActors(plan, spec)
    replay = LocalReplay(plan, learner.network, whole.streams, store, actors=1)
    return ApexLoop(dataclasses.replace(plan, actors=1, envs=whole.envs), learner, actors, replay, whole)
