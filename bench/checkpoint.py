"""How long a learner stands still for a checkpoint with a replay table of a million steps of CartPole's size.

    spar bench checkpoint [--quick]

The pause is what `RunFolder.checkpoint` takes until the learner goes on: a thread then copies the table's rows and
writes them. Its peer is the same checkpoint written to its end in the learner's thread. While the thread writes, loops
of add 32, sample 256, update 256 go on; the longest of them stands beside the longest of as many loops without it.
A figure is the median of the rounds (9, quick 3), its spread the least and the most of them.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench import ledger
from bench.feeding import ADD, BATCH, ROWS, full_table, steps

from sparring.config import Config
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.folder import RunFolder
from sparring.replay.sampler import Prioritised, Uniform
from sparring.replay.table import Table

GOAL_MS = 20.0
SAMPLERS = {"uniform": Uniform, "prioritised": lambda rows: Prioritised(rows, 0.6, 0.4)}


def measure(table: Table, run: RunFolder, rng: np.random.Generator) -> dict[str, float]:
    """One round, in ms."""
    added, errors = steps(ADD, np.arange(ADD), rng), rng.random(BATCH, np.float32)

    def loop() -> float:
        begun = time.perf_counter()
        table.insert(added)
        _, rows = table.sample(BATCH, rng, n_steps=1, discount=0.99)
        table.update_priorities(rows, errors)
        return time.perf_counter() - begun

    begun = time.perf_counter()
    run.checkpoint({"table": table.save()})
    paused = time.perf_counter() - begun
    beside = [loop()]
    while not run.finish_checkpoint(wait=False):
        beside.append(loop())
    alone = [loop() for _ in beside]
    begun = time.perf_counter()
    run.checkpoint({"table": table.save()})
    run.finish_checkpoint()
    whole = time.perf_counter() - begun
    found = {"pause": paused, "whole": whole, "beside": max(beside), "alone": max(alone)}
    return {name: 1000 * seconds for name, seconds in found.items()}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    rng, cases = np.random.default_rng(0), []
    for name, sampler in SAMPLERS.items():
        table = full_table(ROWS, rng, sampler(ROWS))
        with tempfile.TemporaryDirectory() as folder:
            of = RunFolder.create(Path(folder), plan(TrainRequest("cartpole", "dqn"), Config()), [])
            measure(table, of, rng)  # compiles
            rounds = [measure(table, of, rng) for _ in range(3 if args.quick else 9)]
        median = {key: round(statistics.median(one[key] for one in rounds), 2) for key in rounds[0]}
        pauses = [one["pause"] for one in rounds]
        cases += [
            ledger.case(
                f"pause of the learner, {name} table of a million steps",
                median["pause"],
                "ms",
                peers={"written in the learner's thread": median["whole"]},
                limit=GOAL_MS,
                goals={"limit": 1.0},
                less_is_better=True,
                seeds=[0],
                spread=(round(min(pauses), 2), round(max(pauses), 2)),
            ),
            ledger.case(
                f"longest loop of add, sample, update while it is written, {name}",
                median["beside"],
                "ms",
                peers={"longest without": median["alone"]},
                less_is_better=True,
                seeds=[0],
            ),
        ]
    return ledger.result("checkpoint", cases, rows=ROWS)


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
