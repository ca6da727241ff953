"""Ape-X on Atari Pong: how fast it plays and learns, on this machine's processes and on Ray.

    spar bench apex-pong [--quick]

Each in a process of its own, with the preset of `spar train atari:Pong --algo apex` and two actors. Env steps are ticks
of all games (four frames of the console each), counted when replay has taken them in; updates are the learner's. In
the long run the rate limiter ties the two together: samples_per_insert / batch_steps updates for each step.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from bench import ledger

HOSTS = {  # name → URL and shards of replay
    "local": ("local://", 0),
    "local, 1 shard": ("local://", 1),
    "Ray, 1 shard": ("ray://local", 1),
}
MIN_STEPS = 2_000  # before it learns: a measurement need not wait for more


def measure(url: str, shards: int, seconds: float) -> dict[str, float]:
    """Env steps and updates per second, from the first update on."""
    from dataclasses import replace

    from sparring.config import Config
    from sparring.learn.plan import TrainRequest, plan
    from sparring.learn.topologies import build

    agreed = plan(TrainRequest("atari:Pong", "apex", actors=2, on=url), Config())
    agreed = replace(agreed, replay=replace(agreed.replay, min_steps=MIN_STEPS, shards=shards))
    topology = build(agreed, None)
    try:
        while not topology.learner.updates:
            topology.iterate()
        begun, steps, updates = time.perf_counter(), topology.env_steps, topology.learner.updates
        while time.perf_counter() - begun < seconds:
            topology.iterate()
        passed = time.perf_counter() - begun
        return {
            "steps_per_s": (topology.env_steps - steps) / passed,
            "updates_per_s": (topology.learner.updates - updates) / passed,
        }
    finally:
        topology.close()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` measures shorter and each once."""
    rounds, seconds = (1, 6.0) if args.quick else (3, 20.0)
    told: dict[str, list[dict[str, float]]] = {name: [] for name in HOSTS}
    for _ in range(rounds):
        for name, (url, shards) in HOSTS.items():
            told[name].append(_apart(url, shards, seconds))
    cases = []
    for name, each in told.items():
        for figure, unit in (("steps_per_s", "env steps/s"), ("updates_per_s", "updates/s")):
            found = [one[figure] for one in each]
            cases.append(
                ledger.case(
                    f"{name}, {unit}",
                    round(statistics.median(found), 1),
                    unit,
                    spread=(round(min(found), 1), round(max(found), 1)),
                )
            )
    return ledger.result("apex-pong", cases)


def _apart(url: str, shards: int, seconds: float) -> dict[str, float]:
    """What this file says in a process of its own."""
    command = [sys.executable, "-m", "bench.apex_pong", url, str(shards), str(seconds)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ledger.ROOT).stdout
    figures: dict[str, float] = json.loads(said.strip().splitlines()[-1])
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
