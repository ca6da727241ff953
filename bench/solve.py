"""The race to solve a task, ours and peers' in turns: what solve-cartpole, solve-acrobot and solve-lunarlander share.

A run is one process: a peer's own script (bench/peers/solve_NAME.py) in the peer's own environment, or
bench/solve_ours.py. Its clock runs from the first step of the environment, stands still while 100 greedy episodes are
played (bench/peers/greedy.py), and leaves out imports; what is judged are the weights of the moment at which it
stands still. For each seed ours runs first, then every peer, until it has solved the task, or its own schedule ends,
or 10 times our median are over: then it is counted at that time, marked ">". A seed that we do not solve counts as
infinite.

Each run's line is kept in bench/results/quick/solve/ for the commit that it measured, so that an interrupted race goes
on where it was. Seeds are drawn from the commit's hash unless --seeds gives them; settings were tuned on seeds
1000 to 1010, which are never drawn.
"""

import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import ledger
from bench.peers.environments import python_of

OURS = "sparring"
PEERS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {  # as shown → environment, script, further words
    "CleanRL 1.2.0": ("cleanrl", "cleanrl", ()),
    "Stable-Baselines3 2.9.2": ("sb3", "sb3", ()),
    "Stable-Baselines3 2.9.2 (DQN)": ("sb3", "sb3", ("dqn",)),
    "Tianshou 2.0.1": ("tianshou", "tianshou", ()),
    "Sample Factory 2.1.1": ("sample-factory", "sample_factory", ()),
    "RLlib 2.60.0": ("rllib", "rllib", ()),
}
QUICK = ("CleanRL 1.2.0", "Stable-Baselines3 2.9.2")
GOAL, STOPPED_AT = 3.0, 10.0  # times our median
TUNED = range(1000, 1011)
FOLDER = ledger.ROOT / "bench" / "results" / "quick" / "solve"


@dataclass(frozen=True, slots=True)
class Task:
    """What has to be reached, and how often everyone is looked at."""

    name: str  # of the benchmark
    env: str
    threshold: float
    every: int  # steps between two looks
    most_s: float  # for one run of ours
    algo: str = "ppo"
    peers: tuple[str, ...] = tuple(peer for peer in PEERS if "DQN" not in peer)


@dataclass(slots=True)
class Finish:
    """One run: when it solved the task, or infinity; `stopped` where a peer was given no more time."""

    seconds: float
    env_steps: int
    stopped: bool = False
    returns: list[Any] = field(default_factory=list)


def measure(task: Task, args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    seeds = tuple(getattr(args, "seeds", ())) or drawn(_head(), 2 if args.quick else 5)
    peers = tuple(peer for peer in task.peers if not args.quick or peer in QUICK)
    found: dict[str, list[Finish]] = {who: [] for who in (OURS, *peers)}
    for seed in seeds:
        for who in (OURS, *peers):
            limit = task.most_s if who == OURS else _limit(found[OURS], task)
            found[who].append(remembered(task, who, seed, limit))
            _say(task, who, seed, found[who][-1])
    limit = _limit(found[OURS], task)  # of all seeds: who was given less on an early seed, and needed it, runs again
    return told(task, seeds, {OURS: found[OURS]} | {p: [remembered(task, p, s, limit) for s in seeds] for p in peers})


def drawn(commit: str, count: int) -> tuple[int, ...]:
    """Seeds derived from a commit's hash: they cannot be picked by hand, and every machine derives the same."""
    numbers = (int.from_bytes(hashlib.sha256(f"{commit} {i}".encode()).digest()[:4]) % 2**31 for i in range(1000))
    return tuple([seed for seed in numbers if seed not in TUNED][:count])


def _limit(ours: Sequence[Finish], task: Task) -> float:
    median = statistics.median(one.seconds for one in ours)
    return STOPPED_AT * min(median, task.most_s)


def remembered(task: Task, who: str, seed: int, limit_s: float) -> Finish:
    """The run's line where this commit has one that counts, else the run."""
    path = FOLDER / f"{_code()}.jsonl"
    key = {"task": task.name, "who": who, "seed": seed}
    for line in path.read_text().splitlines() if path.exists() else ():
        kept = json.loads(line)
        if {name: kept[name] for name in key} == key and counts(kept, limit_s):
            seconds = math.inf if kept["seconds"] is None else kept["seconds"]
            return Finish(seconds, kept["env_steps"], kept["stopped"], kept["returns"])
    finish = raced(task, who, seed, limit_s)
    path.parent.mkdir(parents=True, exist_ok=True)
    seconds = finish.seconds if math.isfinite(finish.seconds) else None
    line = {**key, "seconds": seconds, "env_steps": finish.env_steps, "stopped": finish.stopped}
    with path.open("a") as file:
        file.write(json.dumps({**line, "returns": finish.returns}) + "\n")
    return finish


def counts(kept: Mapping[str, Any], limit_s: float) -> bool:
    """Whether a run need not be run again: one that was stopped has to, where it is now given more time."""
    return not kept["stopped"] or kept["seconds"] >= limit_s


def _code() -> str:
    """What is measured: the commit, and what differs from it."""
    differs = ledger.git("diff", "HEAD", "--", "src", "bench/*.py")
    return _head() + (f"-{hashlib.sha256(differs.encode()).hexdigest()[:8]}" if differs else "")


def _head() -> str:
    return ledger.commit().rstrip("+")  # a benchmark's own result is a difference too


def raced(task: Task, who: str, seed: int, limit_s: float) -> Finish:
    """One run in its own process."""
    order = {"env": task.env, "threshold": task.threshold, "seed": seed, "every": task.every, "limit_s": limit_s}
    said = answer(command(who, order, task.algo))
    if said["solved"]:
        return Finish(said["seconds"], said["env_steps"], returns=said["returns"])
    seconds = math.inf if who == OURS else limit_s
    return Finish(seconds, said["env_steps"], who != OURS, said["returns"])


def command(who: str, order: Mapping[str, Any], algo: str = "ppo") -> list[str]:
    """What runs it."""
    if who == OURS:
        return [sys.executable, "-m", "bench.solve_ours", json.dumps(order), algo]
    environment, script, words = PEERS[who]
    path = Path("bench") / "peers" / f"solve_{script}.py"
    return [str(python_of(environment)), "-W", "ignore", str(path), json.dumps(order), *words]


def answer(words: Sequence[str]) -> dict[str, Any]:
    """The JSON of the last line that a run prints; a run that fails says so with its own last words."""
    patience = {"RAY_raylet_start_wait_time_s": "120", "RAY_agent_register_timeout_ms": "120000"}  # on a busy machine
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **patience}
    done = subprocess.run(words, cwd=ledger.ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{' '.join(words[:4])} … ended with {done.returncode}:\n{done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(lines[-1])
    return said


def told(task: Task, seeds: Sequence[int], found: Mapping[str, Sequence[Finish]]) -> dict[str, Any]:
    """Medians and spread; the goal is against the fastest peer."""
    medians = {who: statistics.median(one.seconds for one in runs) for who, runs in found.items()}
    peers = {who: round(medians[who], 3) for who in found if who != OURS}
    fastest = min(peers, key=lambda who: peers[who])
    ours = [one.seconds for one in found[OURS]]
    case = ledger.case(
        f"{task.env} to a mean return of {task.threshold:g}",
        _figure(medians[OURS]),
        "s",
        peers=peers,
        goals={fastest: GOAL},
        less_is_better=True,
        seeds=seeds,
        spread=(_figure(min(ours)), _figure(max(ours))),
        stopped=sorted(who for who in peers if statistics.median_high(one.stopped for one in found[who])),
        runs={
            who: [{"seconds": _figure(x.seconds), "env_steps": x.env_steps, "stopped": x.stopped} for x in runs]
            for who, runs in found.items()
        },
    )
    return ledger.result(task.name, [case])


def _figure(seconds: float) -> float:
    return round(seconds, 3) if math.isfinite(seconds) else 1e9  # JSON knows no infinity


def _say(task: Task, who: str, seed: int, finish: Finish) -> None:
    mark = ">" if finish.stopped else ""
    print(f"{task.name} {who} seed {seed}: {mark}{finish.seconds:.2f} s, {finish.env_steps:,} steps", file=sys.stderr)
