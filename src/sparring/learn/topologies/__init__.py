"""How actors, replay and learner are wired: one file each, one function in it that reads like the picture.

A topology learns in iterations. The session (learn/runs/session.py) owns the loop around them: limits, metrics,
checkpoints and models.
"""

import importlib
from collections.abc import Callable

from sparring.learn.plan import Plan
from sparring.learn.protocol import Topology
from sparring.store.protocol import Store

TOPOLOGIES = {
    "single": "sparring.learn.topologies.single:build",
    "sync": "sparring.learn.topologies.sync:build",
    "allreduce": "sparring.learn.topologies.allreduce:build",
    "async": "sparring.learn.topologies.async_:build",
    "apex": "sparring.learn.topologies.apex:build",
    "central": "sparring.learn.topologies.central:build",
    "hogwild": "sparring.learn.topologies.hogwild:build",
    "offline": "sparring.learn.topologies.offline:build",
    "rllib": "sparring.learn.rllib.topology:build",
}


def build(plan: Plan, store: Store | None) -> Topology:
    """The plan's topology, ready for its first iteration. `store` is given where the plan reads it."""
    from sparring.nets import delta_conv

    delta_conv.enable(plan.delta_conv)
    module, name = TOPOLOGIES[plan.topology].split(":")
    build: Callable[[Plan, Store | None], Topology] = getattr(importlib.import_module(module), name)
    return build(plan, store)
