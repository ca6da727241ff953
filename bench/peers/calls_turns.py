"""How callers of bench/calls.py are told what to measure: one line of JSON for each turn, one line back.

A library's script starts its service in another process, says "ready", and answers each turn with the seconds that
calls took. `callers` calls are under way at once from this one process, a new one begun when one is answered.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np

Calls = Callable[[np.ndarray, int, bool, float], list[float]]  # array, callers, batched, until → seconds of each call


def answer_turns(calls: Calls) -> None:
    """Measure what is asked for, until nothing more is."""
    print("ready", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        array = np.full(told["bytes"], 7, np.uint8)
        begun = time.perf_counter()
        took = calls(array, told["callers"], told["batched"], begun + told["seconds"])
        elapsed = time.perf_counter() - begun
        p50, p99 = np.quantile(took, [0.5, 0.99])
        said = {"rate": len(took) / elapsed, "p50_us": p50 * 1e6, "p99_us": p99 * 1e6, "calls": len(took)}
        print(json.dumps(said), flush=True)


def check(answer: np.ndarray, size: int) -> None:
    """Each answer is an array as large as what was sent, and is looked at."""
    if len(answer) != size or answer[-1] != 9:
        raise SystemExit("an answer is not what was answered")
