"""What the defaults learn on ten tasks in equal time, beside Stable-Baselines3 with its own defaults.

    spar bench tasks [--quick] [--seeds S,S,…]

Five tasks have a preset (learn/presets.py), five are learned with an algorithm's defaults alone. A cell is one process
with one thread: ours (`python -m bench.tasks ORDER`) or the peer's (bench/peers/tasks_sb3.py), the two of a seed side
by side. It learns for the task's budget, imports left out, then plays 100 greedy episodes. The budget is CPU time of
the process, which is the wall-clock time on a machine of two idle cores, and is the same for both where the machine
does other work, too; the wall-clock time is shown. A row's figure is the median over seeds of the mean return; a row is
"even" where both differ by less than 5 % of the larger one. A cell that fails is shown as failed, and the others go on.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import ledger
from bench.peers.environments import python_of
from bench.solve import answer, drawn

OURS, PEER = "sparring", "Stable-Baselines3 2.9.2"
EVEN = 0.05  # of the larger figure
EPISODES, FIRST_SEED = 100, 1_000_000


@dataclass(frozen=True, slots=True)
class Task:
    """One row: an environment of Gymnasium, an algorithm of both libraries, and seconds of CPU to learn."""

    env: str
    algo: str
    budget_s: float


TASKS = (
    Task("CartPole-v1", "ppo", 30.0),
    Task("Acrobot-v1", "ppo", 60.0),
    Task("LunarLander-v3", "ppo", 240.0),
    Task("Pendulum-v1", "ppo", 60.0),
    Task("Pendulum-v1", "sac", 60.0),
    Task("BipedalWalker-v3", "ppo", 370.0),
    Task("FrozenLake8x8-v1", "ppo", 120.0),
    Task("Taxi-v3", "ppo", 120.0),
    Task("MountainCar-v0", "dqn", 180.0),
    Task("MountainCarContinuous-v0", "sac", 120.0),
)
QUICK, QUICK_S = (0, 4, 6, 8), 15.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick`: one seed, four tasks, 15 s each."""
    tasks = [Task(TASKS[i].env, TASKS[i].algo, QUICK_S) for i in QUICK] if args.quick else TASKS
    seeds = tuple(getattr(args, "seeds", ())) or drawn(ledger.commit().rstrip("+"), 1 if args.quick else 3)
    return measure(tasks, seeds)


def measure(tasks: Sequence[Task], seeds: Sequence[int]) -> dict[str, Any]:
    """Every cell, and a table of the rows."""
    cases = []
    for task in tasks:
        orders = [(who, task, seed) for seed in seeds for who in (OURS, PEER)]
        with ThreadPoolExecutor(2) as processes:
            found = list(processes.map(lambda order: cell(*order), orders))
        cases.append(row(task, seeds, {OURS: found[::2], PEER: found[1::2]}))
    print("\n".join(table(cases)), file=sys.stderr, flush=True)
    return ledger.result("tasks", cases)


def cell(who: str, task: Task, seed: int) -> dict[str, Any]:
    """One process: {"mean", "sd", "env_steps", "seconds", "cpu_s"}, or {"failed": its last words}."""
    order = json.dumps({"env": task.env, "algo": task.algo, "seed": seed, "budget_s": task.budget_s})
    script = str(Path("bench") / "peers" / "tasks_sb3.py")
    try:
        ours = [sys.executable, "-W", "ignore", "-m", "bench.tasks", order]
        found = answer(ours if who == OURS else [str(python_of("sb3")), "-W", "ignore", script, order])
    except (SystemExit, OSError, ValueError) as error:
        found = {"failed": str(error)[-500:]}
    print(f"tasks {task.env} {task.algo} {who} seed {seed}: {told(found)}", file=sys.stderr, flush=True)
    return found


def told(found: Mapping[str, Any]) -> str:
    """One cell as text."""
    if "failed" in found:
        return f"failed: {str(found['failed']).strip().splitlines()[-1]}"
    seconds = f"{found['cpu_s']:.0f} s of CPU ({found['seconds']:.0f} s)"
    return f"{found['mean']:.1f} ± {found['sd']:.1f}, {found['env_steps']:,} steps in {seconds}"


def row(task: Task, seeds: Sequence[int], cells: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The case of one task, with its verdict."""
    means = {who: [one["mean"] for one in found if "mean" in one] for who, found in cells.items()}
    ours, theirs = (statistics.median(found) if found else None for found in means.values())
    said = verdict(ours, theirs)
    case = ledger.case(f"{task.env} ({task.algo}, {task.budget_s:g} s)", 0.0 if ours is None else ours, "return")
    spread = (min(means[OURS]), max(means[OURS])) if ours is not None else None
    peers = {} if theirs is None else {PEER: theirs}
    passed = said in ("better", "even")
    return {
        **case,
        "peers": peers,
        "seeds": list(seeds),
        "spread": spread,
        "passed": passed,
        "verdict": said,
        "runs": cells,
    }


def verdict(ours: float | None, theirs: float | None) -> str:
    """Ours beside theirs: "better", "even", "worse", or whose cells all failed."""
    if ours is None or theirs is None:
        return "ours failed" if ours is None else "theirs failed"
    if abs(ours - theirs) <= EVEN * max(abs(ours), abs(theirs)):
        return "even"
    return "better" if ours > theirs else "worse"


def table(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows for people."""
    lines = [f"{'task':44} {OURS:>12} {'SB3':>12}  verdict"]
    for case in cases:
        theirs = f"{case['peers'][PEER]:12.1f}" if case["peers"] else f"{'-':>12}"
        lines.append(f"{case['name']:44} {case['ours']:12.1f} {theirs}  {case['verdict']}")
    return lines


def learn(order: Mapping[str, Any]) -> dict[str, Any]:
    """Ours: train by the preset or the defaults until the seconds are over, then play."""
    import torch

    from sparring.config import Config
    from sparring.learn.plan import TrainRequest, plan
    from sparring.learn.topologies import build

    torch.set_num_threads(1)
    game = f"gym:{order['env']}"
    topology = build(plan(TrainRequest(game, order["algo"], seed=order["seed"]), Config()), None)
    try:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        while (cpu_s := time.process_time() - cpu_begun) < order["budget_s"]:
            topology.iterate()
        seconds = time.perf_counter() - begun
        returns = greedy_returns(game, topology.learner.network, topology.learner.weights(), order["seed"])
        steps = topology.env_steps
    finally:
        topology.close()
    took = {"env_steps": steps, "seconds": seconds, "cpu_s": cpu_s}
    return {"mean": statistics.fmean(returns), "sd": statistics.pstdev(returns), **took}


def greedy_returns(game_id: str, network: Any, weights: Any, seed: int) -> list[float]:
    """Of 100 episodes at once, by the best actions."""
    import numpy as np

    from sparring.games.catalogue import open_game
    from sparring.nets.numpy_forward import NumpyForward
    from sparring.nets.policies import bounds_of, choose, squashed

    game, forward, rng = open_game(game_id, EPISODES), NumpyForward(network, weights), np.random.default_rng(seed)
    action = game.spec.seats[0].action
    view = game.reset(np.arange(FIRST_SEED, FIRST_SEED + EPISODES, dtype=np.uint64), np.ones(EPISODES, bool))
    total = np.zeros(EPISODES)
    while not view.over.all():
        out = forward(view.observation[0])
        if action.choices:
            chosen = choose(action, out["logits"], view.legal[0], rng).action
        else:
            chosen = squashed(out["mean"], bounds_of(action)).reshape(EPISODES, *action.shape)
        view = game.step([chosen])
        total += view.reward[:, 0]
    return [float(one) for one in total]


if __name__ == "__main__":
    print(json.dumps(learn(json.loads(sys.argv[1]))), flush=True)
