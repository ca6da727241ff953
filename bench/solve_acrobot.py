"""Seconds until Acrobot-v1's mean of 100 greedy episodes reaches -90, beside other libraries.

    spar bench solve-acrobot [--quick] [--seeds S,S,…]

How it is measured: bench/solve.py.
"""

import argparse
from typing import Any

from bench.solve import Task, measure

TASK = Task("solve-acrobot", "Acrobot-v1", -90.0, every=4_096, most_s=300.0)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick`: two seeds, two peers."""
    return measure(TASK, args)
