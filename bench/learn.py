"""What is learned, how well and how soon: the thresholds of docs/algorithms/, each by the command a user would type.

    python bench/learn.py                          all cases, one seed
    python bench/learn.py --case cartpole-ppo --seeds 0 1 2
    python bench/learn.py --case acting            steps per second of an actor alone

`ours` is the score of the published model over 200 greedy episodes (return, or share of games won with a draw as
half); the peer "threshold" is what has to be reached. `seconds` is the run's own clock, models included.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import ledger

from sparring.acting.actor import Actor
from sparring.acting.evaluate import evaluate
from sparring.acting.opponents import Opponents
from sparring.config import Config, load
from sparring.games.catalogue import open_game
from sparring.games.scripts import play, script
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, TrainResult, train
from sparring.nets.numpy_forward import NumpyForward
from sparring.registry import open_registry
from sparring.store import open_store

EPISODES = 200
EVALUATION_SEED = 77  # of the evaluation; no run is trained with it

Case = Callable[[int, float], dict[str, Any]]


def trained(request: TrainRequest, folder: str, **options: Any) -> tuple[TrainResult, Config]:
    """A run in a folder of its own."""
    config = load(None, (f"data={folder}",))
    return train(request, TrainOptions(**options), config, lambda progress: None), config


def score(result: TrainResult, config: Config, against: str | None) -> float:
    """Mean return alone, share of games won against a script."""
    with open_registry(config.registry_url) as registry:
        model = registry.fetch(result.published.model)
    played = evaluate(result.plan.game, model, episodes=EPISODES, seed=EVALUATION_SEED, against=against)
    return played.mean if played.score is None else played.score


def cartpole(algo: str) -> Case:
    """Mean return of 475 over greedy episodes: what Gymnasium calls solved."""

    def run(seed: int, minutes: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            result, config = trained(TrainRequest("cartpole", algo, seed=seed), folder, until=490.0, minutes=minutes)
            return {"score": score(result, config, None), "seconds": result.seconds, "env_steps": result.env_steps}

    return run


def versus(game: str, rival: str) -> Case:
    """Self-play with past selves, then games against a script that it never met."""

    def run(seed: int, minutes: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            result, config = trained(TrainRequest(game, "ppo", seed=seed), folder, minutes=minutes)
            told = {name: score(result, config, name) for name in ("random", rival)}
            return {"score": told[rival], **told, "seconds": result.seconds, "env_steps": result.env_steps}

    return run


def offline(seed: int, minutes: float) -> dict[str, Any]:
    """Records of players between chance and fair: how many times better a model is than those it learned from."""
    rng = np.random.default_rng(seed)
    game, returns = open_game("cartpole", 16), []
    with tempfile.TemporaryDirectory() as folder:
        config = load(None, (f"data={folder}",))
        with open_store(config.store_url) as store:
            for name, rate in (("random", 0.0), ("balance", 0.35), ("balance", 0.4)):
                seeds = rng.integers(0, 2**63, 60).tolist()
                for chunks in play(game, [NoisyScript(name, rate)], seeds, rng, "play"):  # type: ignore[list-item]
                    store.append(chunks)
                    returns.append(sum(float(chunk.columns["reward"].sum()) for chunk in chunks))
        request = TrainRequest("cartpole", "dqn", seed=seed, source="store", steps=600_000)
        result, config = trained(request, folder, minutes=minutes)
        mean, data = score(result, config, None), statistics.fmean(returns)
        return {"score": mean / data, "return_mean": mean, "data_mean": data, "seconds": result.seconds}


class NoisyScript:
    """A script that does something else now and then."""

    def __init__(self, name: str, rate: float) -> None:
        self.name, self._script, self._rate = name, script("cartpole", name), rate

    def act(self, seat: int, observation: Any, legal: Any, rng: np.random.Generator) -> Any:
        action = self._script.act(seat, observation, legal, rng)
        return np.where(rng.random(len(action)) < self._rate, 1 - action, action).astype(np.int32)


def acting(game: str) -> Case:
    """Ticks per second of 16 games played by one actor with its default network."""

    def run(seed: int, minutes: float) -> dict[str, Any]:
        planned = plan(TrainRequest(game, "ppo", seed=seed, envs=16), Config())
        learner = planned.algorithm.begin(planned.spec, planned.settings, seed)
        opponents = Opponents(learner.network, 0, 0.0)
        forward = NumpyForward(learner.network, learner.weights())
        actor = Actor(open_game(game, 16), forward, planned.algorithm.policy, np.random.default_rng(seed), opponents)
        actor.rollout(128)
        begun, busy, before = time.perf_counter(), time.process_time(), actor.env_steps
        while time.perf_counter() - begun < 3.0:
            actor.rollout(128)
        played = actor.env_steps - before
        per_cpu_s = played / (time.process_time() - busy)  # what a quiet machine would give
        return {"score": played / (time.perf_counter() - begun), "steps_per_cpu_s": per_cpu_s}

    return run


CASES: dict[str, tuple[Case, float, str, float]] = {  # what runs, threshold, unit, most minutes
    "acting-cartpole": (acting("cartpole"), 30_000.0, "steps/s", 1.0),
    "acting-connect-four": (acting("connect-four"), 20_000.0, "steps/s", 1.0),
    "cartpole-ppo": (cartpole("ppo"), 475.0, "return", 3.0),
    "cartpole-dqn": (cartpole("dqn"), 475.0, "return", 5.0),
    "cartpole-records": (offline, 1.3, "times the records' mean", 3.0),
    "connect-four-random": (versus("connect-four", "random"), 0.9, "score", 3.0),
    "connect-four-tactical": (versus("connect-four", "tactical"), 0.6, "score", 10.0),
    "duel-random": (versus("duel", "random"), 0.9, "score", 3.0),
    "duel-tracker": (versus("duel", "tracker"), 0.6, "score", 6.0),
}


def measured(name: str, seeds: list[int]) -> dict[str, Any]:
    """One case over its seeds; the worst seed has to reach the threshold."""
    run, threshold, unit, minutes = CASES[name]
    found = [run(seed, minutes) for seed in seeds]
    scores = [one["score"] for one in found]
    return ledger.case(
        name,
        min(scores),
        unit,
        peers={"threshold": threshold},
        goals={"threshold": 1.0},
        seeds=seeds,
        spread=(min(scores), max(scores)),
        runs=found,
    )


QUICK = ("acting-cartpole", "acting-connect-four", "cartpole-ppo", "cartpole-records")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Every case, or with --quick those that take seconds."""
    names = getattr(args, "case", None) or (QUICK if getattr(args, "quick", False) else tuple(CASES))
    cases = []
    for name in names:
        cases.append(measured(name, getattr(args, "seeds", [0])))
        print(json.dumps(cases[-1]), file=sys.stderr, flush=True)
    return ledger.result("learn", cases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="may be repeated; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--quick", action="store_true", help="only what takes seconds")
    parser.add_argument("--keep", action="store_true", help="write bench/results/learn.json")
    args = parser.parse_args()
    said = run(args)
    if args.keep:
        ledger.keep(said)
    return ledger.print_result(said)


if __name__ == "__main__":
    sys.exit(main())
