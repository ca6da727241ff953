"""MAPPO beside independent PPO on games of a team, at equal steps.

    spar bench mappo [--quick] [--game TEXT] [--seeds S,S,…] [--plot FILE]

Both learn with the same settings (the presets of learn/presets.py, and SETTINGS here for games that have none): all
that differs is what values a step, a critic that sees all seats or a value of the seat's own view. A cell is a process
that learns for the game's steps with one thread, then plays 200 episodes by the best actions; two cells run side by
side. A row's figure is the median over seeds of minus the mean return (less is better), with the lowest and the highest
seed; random play is shown beside it. --game learns only the games whose id contains TEXT; the cases of the others stay
as they were, with the commit that measured them. --plot draws the curves of both, medians over seeds with their range;
they count what was played while learning, exploration included.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import ledger
from bench.solve import answer, drawn

from sparring.errors import Missing

if TYPE_CHECKING:
    from sparring.acting.players import Player

OURS, PEER, CHANCE = "mappo", "ppo", "random play"
SEEDS, EPISODES, EVALUATION_SEED, POINTS = 5, 200, 1_000_000, 40
SETTINGS = ("rollout_ticks=25", "minibatch_steps=400", "discount=0.95")  # those of simple_spread's preset


@dataclass(frozen=True, slots=True)
class Task:
    """One row: a game of one team, and ticks of all games together to learn from."""

    game: str
    steps: int
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.game}, {self.steps:,} steps"


TASKS = (
    Task("pz:simple_spread_v3", 100_000),
    Task("pz:simple_line_v1(identity=true)", 100_000, SETTINGS),  # four who do not see each other form a line
    Task("pz:simple_speaker_listener_v4", 100_000, SETTINGS),  # seats of two kinds: one sees the goal, the other moves
)
QUICK_STEPS = 10_000


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick`: one seed, a twentieth of the steps."""
    tasks = tasks_of(getattr(args, "game", ""))
    if args.quick:
        tasks = [replace(task, steps=QUICK_STEPS) for task in tasks]
    seeds = tuple(getattr(args, "seeds", ())) or drawn(ledger.commit().rstrip("+"), 1 if args.quick else SEEDS)
    orders = [(task, who, seed) for task in tasks for seed in seeds for who in (OURS, PEER)]
    with ThreadPoolExecutor(2) as cells:
        found = dict(zip(orders, cells.map(lambda order: cell(*order), orders), strict=True))
    cases = {task.name: row(task, seeds, found, goal=not args.quick) for task in tasks}
    return ledger.result("mappo", list(cases.values()) if args.quick else with_others(cases))


def tasks_of(game: str) -> list[Task]:
    """Those whose game's id contains the text."""
    found = [task for task in TASKS if game in task.game]
    if not found:
        do = f"Choose from {', '.join(task.game for task in TASKS)}"
        raise Missing(f"no game of this benchmark contains {game!r}", where="spar bench mappo --game", do=do)
    return found


def with_others(cases: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """These by their names, and those of other games as bench/results has them, with the commit that measured them."""
    said = ledger.kept("mappo")
    others = {case["name"]: {"commit": said["commit"]} | case for case in said["cases"]}
    known = others | cases
    return [known[task.name] for task in TASKS if task.name in known]


def cell(task: Task, who: str, seed: int) -> dict[str, Any]:
    """One process: {"mean", "sd", "curve", "env_steps", "seconds"}."""
    order = {"game": task.game, "algo": who, "seed": seed, "steps": task.steps, "settings": task.settings}
    said = answer([sys.executable, "-W", "ignore", "-m", "bench.mappo", json.dumps(order)])
    told = f"{said['mean']:.2f} ± {said['sd']:.2f} after {said['env_steps']:,} steps, {said['seconds']:.0f} s"
    print(f"mappo {task.game} {who} seed {seed}: {told}", file=sys.stderr, flush=True)
    return said


def row(task: Task, seeds: Sequence[int], found: Mapping[Any, Mapping[str, Any]], *, goal: bool) -> dict[str, Any]:
    """The case of one game."""
    from sparring.acting.evaluate import evaluate

    costs = {who: [-found[task, who, seed]["mean"] for seed in seeds] for who in (OURS, PEER)}
    chance = -evaluate(task.game, "random", episodes=EPISODES, seed=EVALUATION_SEED).mean
    return ledger.case(
        task.name,
        statistics.median(costs[OURS]),
        "minus return",
        peers={PEER: statistics.median(costs[PEER]), CHANCE: chance},
        goals={PEER: 1.0} if goal else {},
        less_is_better=True,
        seeds=seeds,
        spread=(min(costs[OURS]), max(costs[OURS])),
        peer_spread=(min(costs[PEER]), max(costs[PEER])),
        runs={who: [found[task, who, seed] for seed in seeds] for who in (OURS, PEER)},
    )


def plot(said: Mapping[str, Any], path: Path) -> None:
    """Returns while learning, by steps: the median of the seeds, and from the lowest to the highest of them."""
    from matplotlib.figure import Figure

    cases = said["cases"]
    figure = Figure(figsize=(6 * len(cases), 4), layout="constrained")
    for axis, case in zip(figure.subplots(1, len(cases), squeeze=False)[0], cases, strict=True):
        for who in (OURS, PEER):
            curves = [each["curve"] for each in case["runs"][who]]
            points = list(zip(*curves, strict=False))  # runs may differ by one point
            steps = [point[0][0] for point in points]
            returns = [[value for _, value in point] for point in points]
            axis.plot(steps, [statistics.median(values) for values in returns], label=who)
            axis.fill_between(steps, [min(v) for v in returns], [max(v) for v in returns], alpha=0.2)
        axis.set(title=case["name"], xlabel="steps", ylabel="return while learning")
        axis.legend()
    figure.savefig(path, dpi=100)


def player_of(topology: Any) -> "Player":
    """The network that was learned, or, where seats are of several kinds, each one's in its seats."""
    from sparring.acting.players import Lineup
    from sparring.nets.numpy_forward import NumpyForward

    if not hasattr(topology, "parts"):
        return NumpyForward(topology.learner.network, topology.learner.weights())
    seats = {}
    for plan, loop in topology.parts:
        seats |= dict.fromkeys(plan.kind, NumpyForward(loop.learner.network, loop.learner.weights()))
    own = tuple(sorted(seats))
    return Lineup(topology.plan.game, tuple(seats[seat] for seat in own), own)


def learn(order: Mapping[str, Any]) -> dict[str, Any]:
    """Train, then play."""
    import torch

    from sparring.acting.evaluate import evaluate
    from sparring.config import Config
    from sparring.learn.plan import TrainRequest, plan
    from sparring.learn.topologies import build

    torch.set_num_threads(1)
    asked = TrainRequest(
        order["game"], order["algo"], seed=order["seed"], steps=order["steps"], settings=tuple(order["settings"])
    )
    topology = build(plan(asked, Config()), None)
    begun, curve, earned = time.perf_counter(), list[tuple[int, float]](), list[float]()
    try:
        while topology.position < order["steps"]:
            ended = topology.iterate().episodes
            earned += [] if ended is None else ended.returns.tolist()
            if earned and topology.position >= (len(curve) + 1) * order["steps"] / POINTS:
                curve.append((topology.position, round(statistics.fmean(earned), 3)))
                earned.clear()
        seconds = time.perf_counter() - begun
        played = evaluate(order["game"], player_of(topology), episodes=EPISODES, seed=EVALUATION_SEED)
        steps = topology.env_steps
    finally:
        topology.close()
    return {"mean": played.mean, "sd": played.sd, "curve": curve, "env_steps": steps, "seconds": round(seconds)}


if __name__ == "__main__":
    print(json.dumps(learn(json.loads(sys.argv[1]))), flush=True)
