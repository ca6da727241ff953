"""Sparring in the race to solve a task: the game's preset, by the wiring that `spar train` uses. Run by bench/solve.py.

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
from sparring.learn.forward import Forward
from sparring.learn.plan import Wish, plan
from sparring.learn.topologies import Wiring, wire
from sparring.wire.chunk import Array


def greedy(wiring: Wiring) -> Any:
    """The best actions of what is learned now."""
    forward = Forward(wiring.learner.network, wiring.learner.weights())
    (leaf,) = (one.name for one in wiring.learner.network.inputs)
    return lambda seen: np.asarray(forward({leaf: np.asarray(seen, np.float32)})["logits"]).argmax(axis=1)


class Newest:
    """Asks for the weights only where the race looks."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring, self._act, self._of = wiring, None, -1

    def __call__(self, seen: Array) -> Array:
        if self._of != self._wiring.learner.updates:
            self._act, self._of = greedy(self._wiring), self._wiring.learner.updates
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
    agreed = plan(Wish(f"gym:{race.env}", algo, seed=race.seed, envs=envs, settings=settings), Config())
    wiring = wire(agreed, None)
    try:
        best = Newest(wiring)
        race.begin()
        while not race.look(best, wiring.env_steps):
            wiring.turn()
        race.done(wiring.env_steps)
    finally:
        wiring.close()


if __name__ == "__main__":
    main()
