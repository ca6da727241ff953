"""Seconds until LunarLander-v3's mean of 100 greedy episodes reaches 200, beside other libraries.

    spar bench solve-lunarlander [--quick] [--seeds S,S,…]

How it is measured: bench/solve.py.
"""

import argparse
from typing import Any

from bench.solve import Task, measure

TASK = Task("solve-lunarlander", "LunarLander-v3", 200.0, every=10_000, most_s=600.0)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick`: two seeds, two peers."""
    return measure(TASK, args)
