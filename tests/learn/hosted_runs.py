"""Small runs whose actors are processes or services: planned, wired, learned, and who of them is which process."""

import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build

ON_POLICY = ("rollout_ticks=16", "hidden_units=[16]", "minibatch_steps=128", "epochs=2")
REPLAYED = ("learning_rate=0.002", "hidden_units=[32]", "batch_steps=64", "target_every_updates=100")


def planned(config, topology, *, algo=None, settings=None, actors=2, envs=4, shards=0, **wish):
    """CartPole by what suits the topology: Ape-X from a small table, or PPO."""
    name = algo or ("apex" if topology == "apex" else "ppo")
    words = settings or (ON_POLICY if name == "ppo" else REPLAYED)
    small = replace(config.replay, min_steps=500, samples_per_insert=8.0, shards=shards)
    said = {"game": "cartpole", "actors": actors, "envs": envs, "on": "local://", "steps": 10**6} | wish
    return plan(TrainRequest(algo=name, topology=topology, settings=words, **said), replace(config, replay=small))


@contextmanager
def wired(*args, **keys):
    """A topology of that plan; what it started is ended."""
    topology = build(planned(*args, **keys), None)
    try:
        yield topology
    finally:
        topology.close()


def learn(topology, updates, deadline_s=240.0):
    """So many updates more; the turns of them."""
    goal, until, turns = topology.learner.updates + updates, time.monotonic() + deadline_s, []
    while topology.learner.updates < goal:
        assert time.monotonic() < until, (topology.learner.updates, topology.flow())
        turn = topology.iterate()
        if turn.update is not None:
            turns.append(turn)
    return turns


def turn_until(topology, there, deadline_s=180.0):
    """Turn by turn, until something is there."""
    until = time.monotonic() + deadline_s
    while not there():
        assert time.monotonic() < until, topology.flow()
        topology.iterate()


def workers():
    """Processes of this one's hosts."""
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "sparring.hosts.worker" in one.cmdline():
                found.append(one)
    return found


def services():
    """The same by the name of their service, in the order of their numbers."""
    found = defaultdict(set)
    for one in workers():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            for file in one.open_files():
                if file.path.endswith(".log"):
                    name, number, _ = Path(file.path).name.split(".")
                    found[name].add((int(number), one.pid))
    return {name: [psutil.Process(pid) for _, pid in sorted(of)] for name, of in found.items()}


def is_shard(process):
    """Whether a process holds a table: what samples it is compiled."""
    return "llvmlite" in Path(f"/proc/{process.pid}/maps").read_text()


def ray_actors():
    """The processes that hold a service on a cluster that this one started."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if one.is_running() and " ".join(one.cmdline()).startswith("ray::RayServiceActor")]
