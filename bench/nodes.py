"""Runs with nodes on LunarLander-v3: what they reach, beside the system that Sparring's nodes come from.

    spar bench nodes [--quick] [--seeds S,S,…] [--plot FILE]

Ours: two node processes of two workers each, at most 4 million steps and 2,000 merges, five seeds; the figure is the
mean of 500 greedy episodes, the median of the seeds. Beside it, with the first of the seeds, the setting of "A4C"
(A3C, elastic(0.9, 0)), which reported 257.2 ± 39.9 of one run, and A3C on one machine, which it reported as 255.9 ±
36.9. --plot draws what the episodes returned. Quick: one seed, CartPole in place of LunarLander.
"""

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import ledger
from bench.node_runs import NodeRun

REPORTED, REPORTED_ALONE, MOST_SD, MOST_MERGES = 257.2, 255.9, 40.0, 2_000
SEEDS = (1, 2, 3, 4, 5)
LUNAR = NodeRun("gym:LunarLander-v3", "ppo", 3_900_000, workers=2, exchange_s=2.0, episodes=500)
QUICK = NodeRun("cartpole", "a3c", 150_000, exchange_s=0.3, episodes=50)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    seeds = args.seeds or (SEEDS[:1] if args.quick else SEEDS)
    ours = QUICK if args.quick else LUNAR
    original = NodeRun(ours.game, "a3c", ours.steps, "elastic(0.9, 0)", workers=ours.workers, episodes=ours.episodes)
    peers = {} if args.quick else {"A4C reported": REPORTED}
    alone = {} if args.quick else {"A4C reported, one machine": REPORTED_ALONE}
    goals = dict.fromkeys(peers, 1.0)
    cases = [
        _learned(f"{ours.game}, two nodes, {ours.algo}, {ours.merge}", ours, seeds, peers, goals),
        _learned(f"{ours.game}, two nodes, a3c, elastic(0.9, 0)", original, seeds[:1], peers, {}),
        _learned(f"{ours.game}, one machine, a3c", replace(original, nodes=0), seeds[:1], alone, {}),
    ]
    return ledger.result("nodes", cases)


def _learned(name: str, one: NodeRun, seeds: tuple[int, ...], peers: Any, goals: Any) -> dict[str, Any]:
    runs = []
    for seed in seeds:
        runs.append(one.measured(seed))
        told = ", ".join(f"{key} {value:g}" for key, value in runs[-1].items() if key != "returns")
        print(f"nodes: {name}, seed {seed}: {told}", file=sys.stderr, flush=True)
    returns = [each["return"] for each in runs]
    case = ledger.case(
        name, statistics.median(returns), "return", peers=peers, goals=goals, seeds=seeds, runs=runs,
        spread=(min(returns), max(returns)),
    )  # fmt: skip
    if goals:  # the deviation and the merges are part of the goal
        kept = statistics.median(each["sd"] for each in runs) <= MOST_SD
        case["passed"] = case["passed"] and kept and max(each["merges"] for each in runs) <= MOST_MERGES
    return case


def plot(said: dict[str, Any], path: Path) -> None:
    """What the greedy episodes of each seed returned: half of them lie in the box, nine tenths between the whiskers."""
    from matplotlib.figure import Figure

    cases = said["cases"]
    figure = Figure(figsize=(5 * len(cases), 4), layout="constrained")
    for axis, case in zip(figure.subplots(1, len(cases), sharey=True, squeeze=False)[0], cases, strict=True):
        names = [f"{seed}\n{one['seconds']:.0f} s" for seed, one in zip(case["seeds"], case["runs"], strict=True)]
        axis.boxplot([one["returns"] for one in case["runs"]], tick_labels=names, whis=(5, 95), sym="")
        for peer, figure_of in case["peers"].items():
            axis.axhline(figure_of, linestyle="--", label=f"{peer} {figure_of:g}")
        axis.set(title=case["name"], xlabel="seed, and how long it learned", ylabel="return of an episode")
        if case["peers"]:
            axis.legend(loc="lower right")
    figure.savefig(path, dpi=100)
