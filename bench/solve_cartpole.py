"""Seconds until CartPole-v1's mean of 100 greedy episodes reaches 475, beside other libraries.

    spar bench solve-cartpole [--quick] [--seeds S,S,…]

How it is measured: bench/solve.py.
"""

import argparse
from typing import Any

from bench.solve import Task, measure

TASK = Task("solve-cartpole", "CartPole-v1", 475.0, every=2_048, most_s=60.0)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick`: two seeds, two peers."""
    return measure(TASK, args)
