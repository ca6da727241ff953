"""Learning from records: what bc, cql and iql make of mixed players, and whether records rank models rightly.

    python bench/offline.py            2,000 episodes of each game, medians of 5 seeds
    python bench/offline.py --quick    400 episodes, 2 seeds
    python bench/offline.py --game cartpole --seeds 0

A third of the episodes is played by chance, a third by a script, a third by a half-trained policy that samples. In
Connect Four the recorded seat meets the script tactical, and models are measured against that script. The script of
CartPole does something else in 30 of 100 steps: at its best it would leave nothing to learn. `ours` is the median
return of greedy episodes; the peers are bc's median and the records' own mean. Returns of Connect Four lie in
[-1, 1]; there they are given as scores, (1 + return) / 2, so that a ratio means something.

Ranking: the estimator is named here, before any run: fqe. Five models are picked by their true return while one run of
ppo learns CartPole, before anything is estimated; fqe ranks them from the same records.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import ledger

from sparring.config import load
from sparring.games.catalogue import open_game, spec_of
from sparring.games.recorder import play
from sparring.games.scripts import script
from sparring.learn import policies
from sparring.learn.evaluate import evaluate
from sparring.learn.forward import Forward
from sparring.learn.off_policy.judge import judge
from sparring.learn.off_policy.records import read_records
from sparring.learn.plan import Wish, plan
from sparring.learn.topologies import wire
from sparring.store import open_store
from sparring.store.protocol import Store
from sparring.wire.chunk import Chunk

ESTIMATOR = "fqe"
RANKS = (20.0, 60.0, 120.0, 250.0, 450.0)  # true returns at which a learning policy is put aside
LEAST_SPEARMAN = 0.9
BEATS = 1.01  # a tie, such as two models at the most that can be earned, beats nobody
HALF = {"cartpole": 120.0, "connect-four": 0.45}  # what counts as half-trained: return, score against tactical
RIVAL = {"cartpole": None, "connect-four": "tactical"}
SCRIPT = {"cartpole": ("balance", 0.3), "connect-four": ("tactical", 0.0)}  # name, share of other actions
STEPS = {"cartpole": {"bc": 800_000, "cql": 2_000_000, "iql": 2_000_000}}
STEPS["connect-four"] = {"bc": 400_000, "cql": 800_000, "iql": 800_000}
EPISODES, SEEN_SEED = 200, 77


class Tired:
    """A script that does something else now and then."""

    def __init__(self, game: str, name: str, rate: float) -> None:
        self.name, self._script, self._rate = name, script(game, name), rate
        self._chance = script(game, "random")

    def act(self, seat: int, observation: Any, legal: Any, rng: np.random.Generator) -> Any:
        action = self._script.act(seat, observation, legal, rng)
        other = self._chance.act(seat, observation, legal, rng)
        return np.where(rng.random(len(action)) < 2 * self._rate, other, action).astype(np.int32)


class Sampling:
    """A network that samples its policy, as it did when it was trained."""

    name = "half"

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def act(self, seat: int, observation: Any, legal: Any, rng: np.random.Generator) -> Any:
        mask = legal
        if legal is not None and not legal.any(axis=1).all():  # rows in which another seat moves
            mask = np.where(legal.any(axis=1, keepdims=True), legal, True)
        return policies.sample(self._forward(observation)["logits"], mask, rng).action


@dataclass(frozen=True, slots=True)
class Recorded:
    """A store with mixed records, what they earned, and the models put aside while the half-trained one learned."""

    url: str
    mean: float
    models: tuple[tuple[Forward, float], ...]


def truth(game: str, forward: Forward, episodes: int = EPISODES) -> float:
    """Mean return of the network at its best, or its score against the rival."""
    played = evaluate(game, forward, episodes=episodes, seed=SEEN_SEED, against=RIVAL[game])
    return played.mean if played.score is None else played.score


def ladder(game: str, wanted: Sequence[float], seed: int, most_steps: int) -> list[tuple[Forward, float]]:
    """Policies of one ppo run, each put aside when it first earns the next wanted amount."""
    slowly = ("learning_rate=0.001", "epochs=10") if game == "cartpole" else ()  # so that every rung is met
    wiring = wire(plan(Wish(game, "ppo", seed=seed, settings=slowly), load(None, ())), None)
    found: list[tuple[Forward, float]] = []
    looked = 0
    while len(found) < len(wanted) and wiring.position < most_steps:
        wiring.turn()
        if wiring.position < looked + most_steps // 60:
            continue
        looked = wiring.position
        forward = Forward(wiring.learner.network, wiring.learner.weights())
        if truth(game, forward, 20) >= wanted[len(found)]:
            found.append((forward, truth(game, forward)))
    if not found:
        forward = Forward(wiring.learner.network, wiring.learner.weights())
        found.append((forward, truth(game, forward)))
    return found


def record(game: str, episodes: int, folder: str, seed: int) -> Recorded:
    """Mixed players into a store: a third each."""
    wanted = RANKS if game == "cartpole" else (HALF[game],)
    models = ladder(game, wanted, seed, 200_000 if game == "cartpole" else 100_000)
    half = min(models, key=lambda one: abs(one[1] - HALF[game]))[0]
    players = (script(game, "random"), Tired(game, *SCRIPT[game]), Sampling(half))
    rng, returns = np.random.default_rng([seed, 1]), []
    url = load(None, (f"data={folder}",)).store_url
    with open_store(url) as store:
        for player in players:
            returns += _play(game, player, episodes // 3, store, rng)
    mean = statistics.fmean(returns)
    return Recorded(url, mean if RIVAL[game] is None else (1 + mean) / 2, tuple(models))


def _play(game: str, player: Any, episodes: int, store: Store, rng: np.random.Generator) -> list[float]:
    """Episodes of `player`, half in each seat; the rival's own seat is not recorded."""
    seats, rival, returns = len(spec_of(game).seats), RIVAL[game], []
    for own in range(seats):
        others = None if rival is None else script(game, rival)
        table = [player if seat == own else others for seat in range(seats)]
        seeds = rng.integers(0, 2**63, episodes // seats).tolist()
        for chunks in play(open_game(game, 16), table, seeds, rng, "play"):  # type: ignore[arg-type]
            mine: list[Chunk] = [chunk for chunk in chunks if chunk.header.seat == own]
            store.append(mine)
            returns.append(sum(float(chunk.columns["reward"].sum()) for chunk in mine))
    return returns


def learned(game: str, algo: str, data: Recorded, seed: int, share: float) -> float:
    """What the model earns that the algorithm makes of the records."""
    agreed = plan(Wish(game, algo, "store", seed=seed), load(None, ()))
    with open_store(data.url) as store:
        wiring = wire(agreed, store)
        while wiring.position < STEPS[game][algo] * share:
            wiring.turn()
    return truth(game, Forward(wiring.learner.network, wiring.learner.weights()))


def compare(game: str, data: Recorded, seeds: Sequence[int], share: float) -> list[dict[str, Any]]:
    """cql and iql beside bc and the records' mean."""
    scores = {algo: [learned(game, algo, data, seed, share) for seed in seeds] for algo in ("bc", "cql", "iql")}
    unit = "return" if RIVAL[game] is None else f"score against {RIVAL[game]}"
    peers = {"bc": statistics.median(scores["bc"]), "records": data.mean}
    return [
        ledger.case(
            f"{game}-{algo}",
            statistics.median(scores[algo]),
            unit,
            peers=peers,
            goals={"bc": BEATS, "records": BEATS},
            seeds=seeds,
            spread=(min(scores[algo]), max(scores[algo])),
            runs=scores[algo],
            bc_runs=scores["bc"],
        )
        for algo in ("cql", "iql")
    ]


def ranking(data: Recorded, seed: int) -> dict[str, Any]:
    """Whether the estimator puts the models in their true order."""
    spec = spec_of("cartpole")
    with open_store(data.url) as store:
        records = read_records(store, spec)
    judged = [judge(records, forward, spec, discount=0.99, seed=seed) for forward, _ in data.models]
    true = [value for _, value in data.models]
    told = {name: [one.of(name).value for one in judged] for name in ("wis", "fqe", "dr")}
    agreement = {name: spearman(true, values) for name, values in told.items()}
    return ledger.case(
        f"cartpole-ranking-{ESTIMATOR}",
        agreement[ESTIMATOR],
        "Spearman's ρ",
        peers={"threshold": LEAST_SPEARMAN},
        goals={"threshold": 1.0},
        seeds=[seed],
        true_returns=true,
        estimates=told,
        all_estimators=agreement,
        models=len(true),
    )


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks, equal values sharing theirs; 0 where there are too few to rank."""
    if len(first) < 3:
        return 0.0
    table = [np.asarray(values) for values in (first, second)]
    ranks = [(one[:, None] > one).sum(axis=1) + ((one[:, None] == one).sum(axis=1) - 1) / 2 for one in table]
    return float(np.corrcoef(*ranks)[0, 1]) if all(np.ptp(one) for one in ranks) else 0.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Every case; with --quick fewer episodes, seeds and updates."""
    torch.set_num_threads(1)
    quick = getattr(args, "quick", False)
    seeds = getattr(args, "seeds", None) or (list(range(2)) if quick else list(range(5)))
    episodes = 400 if quick else 2000
    share = 0.4 if quick else 1.0
    cases: list[dict[str, Any]] = []
    for game in getattr(args, "game", None) or list(RIVAL):
        with tempfile.TemporaryDirectory() as folder:
            data = record(game, episodes, folder, seed=0)
            print(
                json.dumps({"game": game, "records": data.mean, "half": [x for _, x in data.models]}), file=sys.stderr
            )
            cases += compare(game, data, seeds, share)
            if game == "cartpole":
                cases.append(ranking(data, 0))
            print(json.dumps(cases), file=sys.stderr, flush=True)
    return ledger.result("offline", cases, episodes=episodes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="minutes instead of an hour; the figures are rougher")
    parser.add_argument("--game", action="append", choices=list(RIVAL), help="may be repeated; both by default")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--keep", action="store_true", help="write bench/results/offline.json")
    args = parser.parse_args()
    said = run(args)
    if args.keep:
        ledger.keep(said)
    print(json.dumps(said))
    return 0 if said["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
