"""How near to an equilibrium of Leduc poker a longer run of mmd comes: OpenSpiel computes its exploitability.

    spar bench leduc                           # three seeds, some 60 minutes
    spar bench leduc --quick                   # 30 seconds, one seed: whether it runs, not how well

`spar train spiel:leduc_poker --algo mmd` with LONGER in place of its preset, each run on one core: a weaker pull
towards the uniform policy, shorter steps and enough updates for them, and moves by chance (docs/algorithms/mmd.md says
why). Its newest model, as it acts, is judged as in bench/league.py. Goal: at most 0.15, the median of the seeds.
"""

import argparse
import json
import statistics
import sys
from typing import Any

from bench import ledger
from bench.league import QUICK_MINUTES, each_on_a_core, ours

GAME, GOAL, SEEDS, MINUTES = "leduc_poker", 0.15, (1, 2, 3), 60.0
STEPS = 64_000_000
LONGER = {
    "magnet_first": "0.2",
    "magnet_last": "0.075",
    "magnet_steps": "32_000_000",
    "step_size": "0.2",
    "random_moves": "0.08",
    "trace_decay": "0.7",
    "average_updates": "1000",
    "hidden_units": "[128,128]",
    "schedule_last": "0.12",
}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    quick = getattr(args, "quick", False)
    minutes, seeds = QUICK_MINUTES if quick else MINUTES, tuple(args.seeds) or (SEEDS[:1] if quick else SEEDS)
    settings = [word for name, value in LONGER.items() for word in ("--algo-set", f"{name}={value}")]

    def one(seed: int, core: int) -> dict[str, float]:
        told = ours(GAME, minutes, seed, core, ["--steps", str(STEPS), *settings])
        print(json.dumps({"game": GAME, "seed": seed, **told}), file=sys.stderr, flush=True)
        return told

    runs = each_on_a_core(one, seeds)
    found = [told["exploitability"] for told in runs]
    case = ledger.case(
        f"{GAME}: exploitability after {max(told['steps'] for told in runs):,.0f} ticks",
        statistics.median(found),
        "of a unit",
        limit=GOAL,
        goals={} if quick else {"limit": 1.0},
        less_is_better=True,
        seeds=seeds,
        spread=(min(found), max(found)),
    )
    return ledger.result("leduc", [case], settings=LONGER, runs=runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[])
    parser.add_argument("--quick", action="store_true")
    return ledger.print_result(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
