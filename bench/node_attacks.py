"""One of five nodes is hostile within every bound that is checked (bench/hostile_node.py); CartPole.

    spar bench node-attacks [--quick] [--seeds S,S,…]
    python -m bench.node_attacks --only replay [--seeds S S …]    # one attack alone

flip and drift: nodes learn by PPO and send weights, merged by `median`; beside it what `average` reaches under the same
attack. replay: nodes send experience for PPO, and one sends the same again and again. The figure is the return of 100
greedy episodes of the last model, the median of the seeds; it passes where CartPole is solved (475). Quick: flip alone,
one seed.
"""

import argparse
import statistics
import sys
from dataclasses import replace
from typing import Any

from bench import ledger
from bench.node_runs import NodeRun

SEEDS, SOLVED = (1, 2, 3, 4, 5), 475.0
ATTACKS = ("flip", "drift", "replay")
WEIGHTS = NodeRun("cartpole", "ppo", 200_000, "median", nodes=4, exchange_s=0.3)
EXPERIENCE = NodeRun("cartpole", "ppo", 150_000, nodes=4, hostile="replay", contribute="experience")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    seeds = tuple(args.seeds or (SEEDS[:1] if args.quick else SEEDS))
    goals = {} if args.quick else {"solved": 1.0}
    cases = []
    for attack in getattr(args, "only", None) or (["flip"] if args.quick else ATTACKS):
        if attack == "replay":
            returns = _returns(EXPERIENCE, seeds)
            cases.append(_case("replay, experience that is played again", returns, seeds, {"solved": SOLVED}, goals))
            continue
        median = replace(WEIGHTS, hostile=attack)
        average = statistics.median(_returns(replace(median, merge="average"), seeds))
        peers = {"average": average, "solved": SOLVED}
        cases.append(_case(f"{attack}, weights by median", _returns(median, seeds), seeds, peers, goals))
    return ledger.result("node_attacks", cases)


def _returns(one: NodeRun, seeds: tuple[int, ...]) -> list[float]:
    runs = [one.measured(seed) for seed in seeds]
    found = [float(each["return"]) for each in runs]
    told = ", ".join(f"{each:.0f}" for each in found)
    refused = sum(each["contributions_refused"] for each in runs)
    about = f"{one.hostile}, {one.contribute} by {one.merge}"
    print(f"node-attacks: {about}: {told}; {refused} contributions refused", file=sys.stderr, flush=True)
    return found


def _case(name: str, returns: list[float], seeds: tuple[int, ...], peers: Any, goals: Any) -> dict[str, Any]:
    spread = (min(returns), max(returns))
    name, middle = f"one of five nodes hostile: {name}", statistics.median(returns)
    return ledger.case(name, middle, "return", peers=peers, goals=goals, seeds=seeds, spread=spread, returns=returns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ATTACKS)
    parser.add_argument("--seeds", nargs="*", type=int)
    parser.add_argument("--quick", action="store_true")
    return ledger.print_result(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
