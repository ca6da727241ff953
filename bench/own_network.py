"""Steps per second while PPO learns with a torch.nn.Module of one's own, beside the built-in network of the same shape.

    spar bench own-network [--quick]

Both learn in one process, an update of one and an update of the other in turn, so that both meet the same machine: on
CartPole with 64-64 on one thread, on Pong from pixels with the network of Mnih et al. 2015 on two threads. The built-in
network skips windows of images that did not change (train.delta_conv), and so does a module while it learns; the
built-in network with ordinary convolutions stands beside them.
"""

import argparse
import json
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

from bench import ledger
from bench.steps_pong import said_by
from torch import nn

BUILT_IN, ORDINARY, WARM_UPDATES = "built-in network", "built-in network, ordinary convolutions", 2
CASES: dict[str, tuple[str, int, int, dict[str, float]]] = {  # game: the module, threads, updates of a round, goals
    "cartpole": ("Mlp", 1, 40, {BUILT_IN: 0.7}),
    "atari:Pong": ("NatureCnn", 2, 4, {BUILT_IN: 0.9}),
}


class Mlp(nn.Module):
    """64-64 with tanh, the value on a trunk of its own, as PPO's default."""

    def __init__(self, inputs: tuple[int, ...], outputs: dict[str, int]) -> None:
        super().__init__()
        sizes = (inputs[0], 64, 64)
        self.trunks = nn.ModuleDict()
        for name, units in outputs.items():
            layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.Tanh())]
            self.trunks[name] = nn.Sequential(*layers, nn.Linear(sizes[-1], units))

    def forward(self, observation: Any) -> dict[str, Any]:
        return {name: trunk(observation) for name, trunk in self.trunks.items()}


class NatureCnn(nn.Module):
    def __init__(self, inputs: tuple[int, ...], outputs: dict[str, int]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs[0], 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(512), nn.ReLU()),
        )
        self.heads = nn.ModuleDict({name: nn.Linear(512, units) for name, units in outputs.items()})

    def forward(self, image: Any) -> dict[str, Any]:
        features = self.body(image)
        return {name: head(features) for name, head in self.heads.items()}


def learn(game: str, network: str, threads: int, updates: int) -> dict[str, float]:
    """Steps per second of both after their first updates, in this process."""
    import torch

    from sparring.config import Config
    from sparring.learn.plan import TrainRequest, plan
    from sparring.learn.topologies import build
    from sparring.nets import delta_conv

    torch.set_num_threads(threads)
    named: dict[str, tuple[str, ...]] = {
        BUILT_IN: (),
        ORDINARY: (),
        "module": (f"network=bench.own_network:{network}",),
    }
    requests = {who: TrainRequest(game, "ppo", topology="single", settings=said) for who, said in named.items()}
    topologies = {who: build(plan(request, Config()), None) for who, request in requests.items()}
    steps, seconds = dict.fromkeys(named, 0), dict.fromkeys(named, 0.0)
    try:
        for turn in range(WARM_UPDATES + updates):
            for who, topology in topologies.items():
                delta_conv.enable(who != ORDINARY)
                begun, before = time.perf_counter(), topology.env_steps
                topology.iterate()
                if turn >= WARM_UPDATES:
                    steps[who] += topology.env_steps - before
                    seconds[who] += time.perf_counter() - begun
        return {who: steps[who] / seconds[who] for who in named}
    finally:
        for topology in topologies.values():
            topology.close()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    rounds, cases = 1 if args.quick else 5, []
    for game, (network, threads, updates, goals) in CASES.items():
        words = ["-m", "bench.own_network", game, network, str(threads), str(updates)]
        rates = [said_by(sys.executable, words) for _ in range(rounds)]
        ours = [found["module"] for found in rates]
        case = ledger.case(
            f"{game}, PPO with {network}",
            round(statistics.median(ours)),
            "steps/s",
            peers={who: round(statistics.median(found[who] for found in rates)) for who in (BUILT_IN, ORDINARY)},
            goals=goals,
            spread=(round(min(ours)), round(max(ours))),
        )
        cases.append(case)
    return ledger.result("own-network", cases, rounds=rounds)


if __name__ == "__main__":
    print(json.dumps(learn(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
