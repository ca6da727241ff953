"""How actors, replay and learner are wired: one file each, one function in it that reads like the picture.

A topology learns in iterations. The training loop (learn/runs/train.py) owns the loop around them: limits, metrics,
checkpoints and models.
"""

import importlib

from sparring.learn.plan import Plan
from sparring.learn.protocol import Topology
from sparring.store.protocol import Store

TOPOLOGIES = {
    "single": "sparring.learn.topologies.single",
    "kinds": "sparring.learn.topologies.kinds",
    "sync": "sparring.learn.topologies.sync",
    "allreduce": "sparring.learn.topologies.allreduce",
    "async": "sparring.learn.topologies.async_",
    "apex": "sparring.learn.topologies.apex",
    "central": "sparring.learn.topologies.central",
    "hogwild": "sparring.learn.topologies.hogwild",
    "offline": "sparring.learn.topologies.offline",
    "rllib": "sparring.learn.rllib.topology",
    "nodes": "sparring.nodes.parent",
}


def build(plan: Plan, store: Store | None) -> Topology:
    """The plan's topology, ready for its first iteration. `store` is given where the plan reads it."""
    from sparring.nets import delta_conv

    delta_conv.enable(plan.delta_conv)
    topology: Topology = importlib.import_module(TOPOLOGIES[plan.topology]).build(plan, store)
    return topology
