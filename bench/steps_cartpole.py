"""Steps per second while PPO learns CartPole-v1 with a network of 64-64, beside Sample Factory and RLlib.

    spar bench steps-cartpole [--quick]

All learn rollouts of 4,096 steps in 4 epochs of minibatches of 512. Ours plays 64 games in one process, the peers
as they recommend: Sample Factory two workers of 20 games, RLlib one runner of 8. The clock is that of bench/solve.py,
without looks.
"""

import argparse
import statistics
import sys
from typing import Any

from bench import ledger
from bench.solve import OURS, answer, command

ROLLOUT = {"steps": 4096, "minibatch": 512, "epochs": 4, "envs": 64}
GOALS = {"Sample Factory 2.1.1": 4.0, "RLlib 2.60.0": 8.0}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick`: two rounds of five seconds."""
    rounds, seconds = (2, 5.0) if args.quick else (5, 12.0)
    rates: dict[str, list[float]] = {who: [] for who in (OURS, *GOALS)}
    for seed in range(rounds):
        for who in rates:
            order = {"env": "CartPole-v1", "threshold": 1e9, "seed": seed, "every": 10**12}
            said = answer(command(who, {**order, "limit_s": seconds, "rollout": ROLLOUT}))
            rates[who].append(said["env_steps"] / said["seconds"])
            print(f"steps-cartpole {who}: {rates[who][-1]:,.0f} steps/s", file=sys.stderr)
    case = ledger.case(
        "CartPole-v1, PPO 64-64, 4 epochs of 4,096 steps in minibatches of 512",
        round(statistics.median(rates[OURS])),
        "steps/s",
        peers={who: round(statistics.median(rates[who])) for who in GOALS},
        goals=GOALS,
        seeds=range(rounds),
        spread=(round(min(rates[OURS])), round(max(rates[OURS]))),
    )
    return ledger.result("steps-cartpole", [case])
