"""Sparring in the race to solve a task: the game's preset and the topology of `spar train`. Run by bench/solve.py.

python -m bench.solve_ours '{"env": "CartPole-v1", "threshold": 475, "seed": 1, "every": 2048, "limit_s": 60}' [ALGO]
"""

import json
import os
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from bench.peers.greedy import Race  # type: ignore[attr-defined]

from sparring.config import Config
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.protocol import Topology
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.wire.chunk import Array


def greedy(topology: Topology) -> Any:
    """The best actions of what is learned now."""
    forward = NumpyForward(topology.learner.network, topology.learner.weights())
    (leaf,) = (one.name for one in topology.learner.network.inputs)
    return lambda seen: np.asarray(forward({leaf: np.asarray(seen, np.float32)})["logits"]).argmax(axis=1)


class Newest:
    """Asks for the weights only where the race looks."""

    def __init__(self, topology: Topology) -> None:
        self._topology, self._act, self._of = topology, None, -1

    def __call__(self, seen: Array) -> Array:
        if self._of != self._topology.learner.updates:
            self._act, self._of = greedy(self._topology), self._topology.learner.updates
        assert self._act is not None
        return np.asarray(self._act(seen))


def main() -> None:
    race = Race(**json.loads(sys.argv[1]))
    algo = (sys.argv[2:] or ["ppo"])[0]
    torch.set_num_threads(1)
    settings: tuple[str, ...] = ()
    envs = None
    if race.rollout:
        envs = race.rollout["envs"]
        given = {
            "rollout_ticks": race.rollout["steps"] // envs,
            "minibatch_steps": race.rollout["minibatch"],
            "epochs": race.rollout["epochs"],
            "hidden_units": [64, 64],
        }
        settings = tuple(f"{key}={value}" for key, value in given.items())
    agreed = plan(TrainRequest(f"gym:{race.env}", algo, seed=race.seed, envs=envs, settings=settings), Config())
    topology = build(agreed, None)
    try:
        best = Newest(topology)
        race.begin()
        while not race.look(best, topology.env_steps):
            topology.iterate()
        race.done(topology.env_steps)
    finally:
        topology.close()


if __name__ == "__main__":
    main()
