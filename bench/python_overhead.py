"""What `sparring.train` adds to the time of `spar train`: whole processes, imports included, in turns.

    spar bench python-overhead [--quick]

Both learn CartPole by PPO with the same seed and steps, each in a new folder, so they do the same work and end with
the same weights. A round runs one of each, every other round in the other order; the figure is the median of the
function's seconds less the median of the command's. CPU time of the same processes stands beside it: on a machine that
does other work it varies less.
"""

import argparse
import hashlib
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import ledger
from bench.side_by_side import timed

STEPS, SEED, MOST_ADDED_S = 5_000, 1, 0.3
ONCE = "train.publish_every_s"  # at the end alone: how many models a slow run publishes would depend on its speed
CALL = f"sparring.train('cartpole', algo='ppo', steps={STEPS}, seed={SEED}, config_set={{'{ONCE}': 1e6}})"
COMMAND = f"train cartpole --algo ppo --steps {STEPS} --seed {SEED} --set {ONCE}=1e6"
PROGRAMS = {"function": ("-c", f"import sparring; {CALL}"), "command": ("-m", "sparring", *COMMAND.split())}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick`: two rounds."""
    rounds = 2 if args.quick else 5
    seconds: dict[str, list[float]] = {who: [] for who in PROGRAMS}
    cpu: dict[str, list[float]] = {who: [] for who in PROGRAMS}
    models = set()
    for turn in range(rounds):
        for who in sorted(PROGRAMS, reverse=turn % 2 == 1):
            wall_s, cpu_s, model = one_process(PROGRAMS[who])
            seconds[who].append(wall_s)
            cpu[who].append(cpu_s)
            models.add(model)
            print(f"python-overhead {who}: {wall_s:.2f} s, CPU {cpu_s:.2f} s", file=sys.stderr, flush=True)
    if len(models) > 1:
        raise SystemExit(f"the function and the command learned different weights: {', '.join(sorted(models))}")
    cases = [
        _case("time added to `spar train cartpole`", seconds, goals={"at most": 1.0}),
        _case("CPU time added", cpu),
    ]
    return ledger.result("python-overhead", cases, rounds=rounds)


def one_process(words: tuple[str, ...]) -> tuple[float, float, str]:
    """Seconds, CPU seconds of it and its children, and the hash of the weights that it published."""
    with tempfile.TemporaryDirectory() as folder:
        before = _children_cpu_s()
        seconds, _ = timed([sys.executable, *words], folder)
        (weights,) = Path(folder).glob("data/models/*/weights.safetensors")
        return seconds, _children_cpu_s() - before, hashlib.sha256(weights.read_bytes()).hexdigest()


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _case(name: str, figures: dict[str, list[float]], **goals: Any) -> dict[str, Any]:
    medians = {who: statistics.median(every) for who, every in figures.items()}
    added = max(round(medians["function"] - medians["command"], 3), 0.001)  # less than nothing is nothing
    runs = {who: [round(one, 3) for one in every] for who, every in figures.items()}
    peers = {"at most": MOST_ADDED_S}
    return ledger.case(name, added, "s", peers=peers, less_is_better=True, runs=runs, **goals)
