"""Learning from records: what bc, cql and iql make of mixed players, and whether records rank models rightly.

    python -m bench.offline            2,000 episodes of each game, medians of 5 seeds
    python -m bench.offline --quick    2 seeds, a fifth of the updates, three models to rank
    python -m bench.offline --game cartpole --seeds 1 2

A third of the episodes is played by chance, a third by a script, a third by a half-trained policy that samples.
CartPole's script is a mediocre one, as a beginner would write it: push to the side to which the pole leans (about 42;
the game's own script `balance` earns all of the 500, and a clone of it leaves nothing to beat). Its half-trained
policy is the first of a ppo run that earns 150 to 300. In Connect Four the recorded seat meets the script tactical,
models are measured against it, the script is tactical too, and the half-trained policy is the first that scores half of
what tactical does there: 0.25.

bc, cql and iql have the same records, network, updates and rates (learn/presets.py). `ours` is the median return
of greedy episodes; the peers are bc's median and the records' own mean. Returns of Connect Four lie in [-1, 1]; they
are given as scores, (1 + return) / 2, so that a ratio means something.

Ranking: the estimator is named here, before any run: `world`, the game learned from the records (the rival's answers
too), in which the models play; returns not discounted, like those to be ranked. `advised` is what `spar evaluate
--from store` says to rank by: world where it predicts the episodes left out of its fit, else dr. Five models are put
aside by their true return while ppo learns, before anything is estimated. What was named before is in docs/offline.md.

Seeds are drawn from the commit's hash unless given; settings were tuned on records of seeds 1000 to 1005 (learners of
seeds 1 to 3), which are never drawn. Records and every run are kept in bench/results/quick/offline/ for as long as the
files that decide them stay the same, so that an interrupted benchmark goes on with the same --seeds. Two processes
share the work.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import ledger
from bench.solve import drawn

from sparring.acting.evaluate import evaluate
from sparring.config import load
from sparring.games.catalogue import open_game, spec_of
from sparring.games.scripts import play, script
from sparring.learn.offline.evaluation import evaluate_offline, world_of
from sparring.learn.offline.fitted_values import FitConfig
from sparring.learn.offline.records import read_records
from sparring.learn.offline.vector_world import WorldConfig
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.nets import policies
from sparring.nets.numpy_forward import NumpyForward
from sparring.store import open_store
from sparring.store.protocol import Store
from sparring.wire.chunk import Chunk
from sparring.wire.network import Weights

ALGORITHMS = ("bc", "cql", "iql")
ESTIMATOR = "world"
LEAST_SPEARMAN = 0.9
BEATS = 1.01  # a tie, such as two models at the most that can be earned, beats nobody
SEEN_SEED = 77  # of every final figure's episodes
LOOK_EPISODES = 200  # few enough to be quick, and enough to tell neighbouring ranks apart
PROCESSES = 2
FOLDER = ledger.ROOT / "bench" / "results" / "quick" / "offline"
LEARN = ledger.ROOT / "src" / "sparring" / "learn"
DECIDING = ("presets.py", "algorithms/*.py", "topologies/offline.py", "offline/*.py")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    episodes: int  # recorded of each game
    share: float  # of the preset's updates
    models: int  # that are ranked
    judging: int  # greedy episodes of every final figure
    fit: FitConfig


FULL = Size(2000, 1.0, 5, 1000, FitConfig())
QUICK = Size(2000, 0.2, 3, 300, FitConfig(1500, 300, world=WorldConfig(2, 2000, board_updates=800)))


@dataclass(frozen=True, slots=True)
class Task:
    """How one game's records are made, and what its models are measured by."""

    game: str
    rival: str | None
    half: tuple[float, float]  # between which a policy is half-trained
    ranks: tuple[float, ...]  # true returns that the models to be ranked are picked for
    look_every: int  # steps of the ppo run
    most_steps: int
    slowly: tuple[str, ...] = ()  # settings of the ppo run, so that every rung is met


TASKS = {
    "cartpole": Task(
        "cartpole", None, (150.0, 300.0), (20.0, 100.0, 200.0, 330.0, 480.0), 1_000, 100_000,
        ("learning_rate=0.001", "epochs=10"),
    ),
    "connect-four": Task("connect-four", "tactical", (0.2, 0.3), (0.05, 0.2, 0.35, 0.5, 0.65), 50_000, 1_500_000),
}  # fmt: skip


class Leaning:
    """Pushes to the side to which the pole leans, and asks nothing else."""

    name = "leaning"

    def act(self, seat: int, observation: Any, legal: Any, rng: np.random.Generator) -> Any:
        return (observation["observation/state"][:, 2] > 0).astype(np.int32)


class Sampling:
    """A network that samples its policy, as it did when it was trained."""

    name = "half"

    def __init__(self, forward: NumpyForward) -> None:
        self._forward = forward

    def act(self, seat: int, observation: Any, legal: Any, rng: np.random.Generator) -> Any:
        mask = legal
        if legal is not None and not legal.any(axis=1).all():  # rows in which another seat moves
            mask = np.where(legal.any(axis=1, keepdims=True), legal, True)
        return policies.sample(self._forward(observation)["logits"], mask, rng).action


def truth(task: Task, forward: NumpyForward, episodes: int) -> float:
    """Mean return of the network at its best, or its score against the rival."""
    played = evaluate(task.game, forward, episodes=episodes, seed=SEEN_SEED, against=task.rival)
    return played.mean if played.score is None else played.score


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A learning policy as it was at one time, and what it earned in a few episodes."""

    forward: NumpyForward
    weights: Weights
    earned: float


def ladder(task: Task, ranks: Sequence[float], seed: int) -> tuple[Look, list[Look]]:
    """The half-trained policy of a ppo run, and one policy for each rank: whatever came nearest to it."""
    topology = build(
        plan(TrainRequest(task.game, "ppo", topology="single", seed=seed, settings=task.slowly), load(None, ())), None
    )
    looks: list[Look] = []
    while len(looks) <= len(ranks) or (looks[-1].earned < ranks[-1] and topology.position < task.most_steps):
        if looks:
            topology.iterate()
        if topology.position >= len(looks) * task.look_every:
            weights = topology.learner.weights()
            forward = NumpyForward(topology.learner.network, weights)
            looks.append(Look(forward, weights, truth(task, forward, LOOK_EPISODES)))
    topology.close()
    low, high = task.half
    fit = [one for one in looks if low <= one.earned <= high]
    half = fit[0] if fit else min(looks, key=lambda one: abs(one.earned - (low + high) / 2))
    models: list[Look] = []
    for rank in ranks:
        left = [one for one in looks if one not in models]
        models.append(min(left, key=lambda one: abs(one.earned - rank)))
    return half, models


def record(task: Task, size: Size, folder: Path, seed: int) -> dict[str, Any]:
    """Mixed players into a store, a third each; what each earned, and the models' true returns."""
    half, models = ladder(task, task.ranks[: size.models], seed)
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted attempt left would count twice
    folder.mkdir(parents=True)
    scripted = Leaning() if task.game == "cartpole" else script(task.game, "tactical")
    players = {"random": script(task.game, "random"), "script": scripted, "half-trained": Sampling(half.forward)}
    rng, earned = np.random.default_rng([seed, 1]), {}
    with open_store(_url(folder)) as store:
        for name, player in players.items():
            earned[name] = _play(task, player, -(-size.episodes // 3), store, rng)
    for i, model in enumerate(models):
        np.savez(folder / f"model-{i}.npz", **model.weights)  # type: ignore[arg-type]
    said = {name: _shown(task, statistics.fmean(returns)) for name, returns in earned.items()}
    mean = _shown(task, statistics.fmean(one for returns in earned.values() for one in returns))
    return {
        "mean": mean,
        "players": said,
        "half_greedy": truth(task, half.forward, size.judging),
        "true": [truth(task, one.forward, size.judging) for one in models],
    }


def _shown(task: Task, mean: float) -> float:
    return mean if task.rival is None else (1 + mean) / 2


def _play(task: Task, player: Any, episodes: int, store: Store, rng: np.random.Generator) -> list[float]:
    """Episodes of `player`, half in each seat; the rival's own seat is not recorded."""
    seats, returns = len(spec_of(task.game).seats), []
    for own in range(seats):
        others = None if task.rival is None else script(task.game, task.rival)
        table = [player if seat == own else others for seat in range(seats)]
        seeds = rng.integers(0, 2**63, -(-episodes // seats)).tolist()
        for chunks in play(open_game(task.game, 16), table, seeds, rng, "play"):  # type: ignore[arg-type]
            mine: list[Chunk] = [chunk for chunk in chunks if chunk.header.seat == own]
            store.append(mine)
            returns.append(sum(float(chunk.columns["reward"].sum()) for chunk in mine))
    return returns


def learned(task: Task, size: Size, algo: str, folder: Path, seed: int) -> float:
    """What the model earns that the algorithm makes of the records."""
    agreed = plan(TrainRequest(task.game, algo, "store", seed=seed), load(None, ()))
    with open_store(_url(folder)) as store:
        topology = build(agreed, store)
        while topology.position < agreed.steps * size.share:
            topology.iterate()
        topology.close()
    return truth(task, NumpyForward(topology.learner.network, topology.learner.weights()), size.judging)


def estimated(task: Task, size: Size, folder: Path, seed: int) -> dict[str, list[float]]:
    """What each estimator says of the models that were put aside."""
    spec = spec_of(task.game)
    network = plan(TrainRequest(task.game, "ppo", settings=task.slowly), load(None, ()))
    shape = network.algorithm.begin(network.spec, network.settings, 0).network
    with open_store(_url(folder)) as store:
        records = read_records(store, spec)
    world = world_of(records, spec, seed, size.fit.world)
    told: dict[str, list[float]] = {}
    for i in range(size.models):
        with np.load(folder / f"model-{i}.npz") as weights:
            forward = NumpyForward(shape, {name: weights[name] for name in weights.files})
        said = evaluate_offline(records, forward, spec, discount=1.0, seed=seed, fit=size.fit, world=world)
        for one in (*said.estimates[1:], replace(said.of(said.advised), name="advised")):
            told.setdefault(one.name, []).append(one.value)
    return told


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work: "record", "rank" or the name of an algorithm, on the records of one seed."""

    folder: Path  # where all that belongs together is kept
    game: str
    size: Size
    records: int  # their seed
    what: str
    seed: int  # of the learner

    def done(self) -> Any:
        """What an earlier attempt found with the same files and settings, else this one's answer, kept."""
        name = f"{self.game}-{self.size.models}-{self.records}"
        return _kept(self.folder / f"{name}-{self.what}-{self.seed}.json", lambda: self._work(f"{name}-data"))

    def _work(self, data: str) -> Any:
        task, records = TASKS[self.game], self.folder / data
        if self.what == "record":
            return record(task, self.size, records, self.seed)
        if self.what == "rank":
            return estimated(task, self.size, records, self.seed)
        return learned(task, self.size, self.what, records, self.seed)


def _kept(path: Path, work: Callable[[], Any]) -> Any:
    if path.exists():
        return json.loads(path.read_text())
    found = work()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)
    print(f"offline: {path.stem}: {json.dumps(found)[:200]}", file=sys.stderr, flush=True)
    return found


def do(job: Job) -> Any:
    """In a process of its own."""
    torch.set_num_threads(1)
    return job.done()


def _of_records(job: Job, seeds: Sequence[int]) -> list[Job]:
    """What can be done once they are made, the longest first."""
    return [
        replace(job, what="rank"),
        *(replace(job, what=algo, seed=seed) for algo in reversed(ALGORITHMS) for seed in seeds),
    ]


def measured(job: Job, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The cases of that job's game, once all are done: cql and iql beside bc and the records' mean, and the ranking."""
    task = TASKS[job.game]
    data, told = (replace(job, what=what).done() for what in ("record", "rank"))
    runs = {algo: [replace(job, what=algo, seed=seed).done() for seed in seeds] for algo in ALGORITHMS}
    return [*(beside(task, algo, data, runs, seeds) for algo in ("cql", "iql")), ranking(task, data, told, seeds)]


def beside(
    task: Task, algo: str, data: dict[str, Any], runs: dict[str, list[float]], seeds: Sequence[int]
) -> dict[str, Any]:
    """One algorithm's median beside bc's and the records' mean."""
    return ledger.case(
        f"{task.game}-{algo}",
        statistics.median(runs[algo]),
        "return" if task.rival is None else f"score against {task.rival}",
        peers={"bc": statistics.median(runs["bc"]), "records": data["mean"]},
        goals={"bc": BEATS, "records": BEATS},
        seeds=seeds,
        spread=(min(runs[algo]), max(runs[algo])),
        runs=runs[algo],
        bc_runs=runs["bc"],
        players=data["players"],
        half_greedy=data["half_greedy"],
    )


def ranking(task: Task, data: dict[str, Any], told: dict[str, list[float]], seeds: Sequence[int]) -> dict[str, Any]:
    """Whether the estimator puts the models in their true order."""
    agreement = {name: spearman(data["true"], values) for name, values in told.items()}
    return ledger.case(
        f"{task.game}-ranking-{ESTIMATOR}",
        agreement[ESTIMATOR],
        "Spearman's ρ",
        peers={"threshold": LEAST_SPEARMAN},
        goals={"threshold": 1.0},
        seeds=seeds[:1],
        true_returns=data["true"],
        estimates=told,
        all_estimators=agreement,
    )


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks, equal values sharing theirs; 0 where there are too few to rank."""
    if len(first) < 3:
        return 0.0
    table = [np.asarray(values) for values in (first, second)]
    ranks = [(one[:, None] > one).sum(axis=1) + ((one[:, None] == one).sum(axis=1) - 1) / 2 for one in table]
    return round(float(np.corrcoef(*ranks)[0, 1]), 9) if all(np.ptp(one) for one in ranks) else 0.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Every case; with --quick less of everything."""
    torch.set_num_threads(1)
    quick = getattr(args, "quick", False)
    size = QUICK if quick else FULL
    seeds = tuple(getattr(args, "seeds", ()) or ()) or drawn(ledger.commit().rstrip("+"), 2 if quick else 5)
    games = [game for game in TASKS if game in (getattr(args, "game", None) or TASKS)]
    folder = FOLDER / _version()  # once: somebody may edit meanwhile
    recording = [Job(folder, game, size, seeds[0], "record", seeds[0]) for game in reversed(games)]  # the longest first
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        started = {pool.submit(do, job): job for job in recording}
        rest: list[Future[Any]] = []
        for made in as_completed(started):
            made.result()
            rest += [pool.submit(do, job) for job in _of_records(started[made], seeds)]
        for one in rest:
            one.result()
    cases = [case for job in reversed(recording) for case in measured(job, seeds)]
    return ledger.result("offline", cases, episodes=size.episodes)


def _url(folder: Path) -> str:
    return load(None, (f"data={folder}",)).store_url


def _version() -> str:
    """Of the files that decide what a run finds."""
    paths = [Path(__file__), *(path for name in DECIDING for path in sorted(LEARN.glob(name)))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, updates and models; the figures are rougher")
    parser.add_argument("--game", action="append", choices=list(TASKS), help="may be repeated; both by default")
    parser.add_argument("--seeds", type=int, nargs="+")
    args = parser.parse_args()
    said = run(args)
    if not args.quick and not args.game:
        ledger.keep(said)
    return ledger.print_result(said)


if __name__ == "__main__":
    sys.exit(main())
