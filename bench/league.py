"""How much of what a published model of poker earns could be taken from it: OpenSpiel computes its exploitability.

    spar bench league                          # 3 seeds, with peers: half an hour on two cores
    spar bench league --quick                  # 30 seconds, one seed: whether it runs, not how well
    python -m bench.league --games kuhn_poker  # one game
    python -m bench.league --only ours         # without peers
    python -m bench.league --minutes 5 --peer-seeds 1

For each seed `spar train spiel:GAME --algo mmd` runs with its preset, for 10 minutes at most; its newest model, as it
acts (it samples, as its card says), is judged over the whole tree: the mean of what a best response to it earns in
either seat. OpenSpiel's own NFSP and PSRO with exact best responses have as long as our longest run took; CFR+ over the
whole tree is printed as the limit. Every run has one core (`taskset`), as many at once as there are cores. Goals:
kuhn_poker at most 0.03, leduc_poker at most 0.3, medians of the seeds, a quarter of NFSP's or less on both, and less
than PSRO's on Leduc.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyspiel
from bench import ledger
from bench.peers.environments import python_of
from open_spiel.python import policy
from open_spiel.python.algorithms import exploitability

import sparring
from sparring.api.models import LoadedModel
from sparring.games.catalogue import spec_of
from sparring.nets.policies import log_softmax
from sparring.registry.file import FileRegistry

GOALS = {"kuhn_poker": 0.03, "leduc_poker": 0.3}
OURS, PEERS = "sparring", ("nfsp", "psro", "cfr+")
PEER_GOALS = {"kuhn_poker": {"nfsp": 4.0}, "leduc_poker": {"nfsp": 4.0, "psro": 1.0}}  # times our exploitability
MINUTES, QUICK_MINUTES, SEEDS = 10.0, 0.5, (1, 2, 3)

Order = TypeVar("Order")
Told = TypeVar("Told")


def judged(game: str, model: LoadedModel) -> float:
    """The exploitability of the model as it acts."""
    tree, leaf = pyspiel.load_game(game), spec_of(f"spiel:{game}").seats[0].observation[0].name

    def chances(state: Any) -> dict[int, float]:
        legal = state.legal_actions()
        seen = np.array(state.information_state_tensor(), np.float32)[None]
        logits = model._forward({leaf: seen})["logits"][0][legal]
        if not model.card.samples:
            return {action: float(action == legal[int(logits.argmax())]) for action in legal}
        return dict(zip(legal, np.exp(log_softmax(logits)).tolist(), strict=True))

    return float(exploitability.exploitability(tree, policy.tabular_policy_from_callable(tree, chances)))


def ours(game: str, minutes: float, seed: int, core: int, more: Sequence[str] = ()) -> dict[str, float]:
    """One run of `spar train`, with `more` of its options, and what its newest model gives away."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", f"spiel:{game}", "--algo", "mmd", "--seed", str(seed), "--minutes", f"{minutes:g}"]
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "sparring", *words, *more, "--data", folder],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=partial(os.sched_setaffinity, 0, {core}),
        )
        seconds = time.monotonic() - began
        models = FileRegistry(Path(folder) / "models").models(f"spiel:{game}")
        newest = max((one.card for one in models), key=lambda card: card.created_at_ms)
        found = judged(game, sparring.load(newest.id, data=folder))
    return {"exploitability": found, "seconds": seconds, "steps": float(sum(newest.lineage.steps.values()))}


def peer(name: str, game: str, minutes: float, seed: int, core: int) -> dict[str, float]:
    """What one of OpenSpiel's solvers reaches in that time."""
    script = Path(__file__).parent / "peers" / "spiel_solvers.py"
    words = [str(python_of("open-spiel")), str(script), name, game, f"{60 * minutes:g}", str(seed)]
    pinned = partial(os.sched_setaffinity, 0, {core})
    told = subprocess.run(words, check=True, capture_output=True, text=True, preexec_fn=pinned).stdout
    said: dict[str, float] = json.loads(told.splitlines()[-1])  # OpenSpiel prints before it
    return said


def each_on_a_core(run: Callable[[Order, int], Told], orders: Sequence[Order]) -> list[Told]:
    """What `run` tells of each order and the core that it has for itself, as many at once as there are cores."""
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in (allowed := sorted(os.sched_getaffinity(0))):
        cores.put(core)

    def one(order: Order) -> Told:
        core = cores.get()
        try:
            return run(order, core)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(len(allowed)) as pool:
        return list(pool.map(one, orders))


def played(
    games: Sequence[str], minutes: float, seeds: Sequence[int], peer_seeds: Sequence[int], peers: Sequence[str]
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """All runs by game and solver, each on one core. Peers have as long as our longest run of that game took."""
    longest = dict.fromkeys(games, minutes)

    def one(order: tuple[str, str, int], core: int) -> dict[str, float]:
        game, name, seed = order
        told = ours(game, minutes, seed, core) if name == OURS else peer(name, game, longest[game], seed, core)
        print(json.dumps({"game": game, "solver": name, "seed": seed, **told}), file=sys.stderr, flush=True)
        return told

    of = {OURS: seeds} | {name: peer_seeds if name != "cfr+" else peer_seeds[:1] for name in peers}
    if peers:
        python_of("open-spiel")  # made before anything is timed
    found: dict[tuple[str, str, int], dict[str, float]] = {}
    for names in ((OURS,), peers):
        orders = [(game, name, seed) for game in games for name in names for seed in of[name]]
        found |= dict(zip(orders, each_on_a_core(one, orders), strict=True))
        longest = {game: max(found[game, OURS, seed]["seconds"] for seed in seeds) / 60 for game in games}
    return {game: {name: [found[game, name, seed] for seed in each] for name, each in of.items()} for game in games}


def case_of(game: str, minutes: float, seeds: Sequence[int], runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The case of one game."""
    peers = [name for name in runs if name != OURS]
    reached = {name: statistics.median(one["exploitability"] for one in found) for name, found in runs.items()}
    all_ours = [one["exploitability"] for one in runs[OURS]]
    return ledger.case(
        f"{game}: exploitability after at most {minutes:g} minutes",
        reached[OURS],
        "of a unit",
        peers={name: reached[name] for name in peers},
        limit=GOALS[game],
        goals={name: times for name, times in PEER_GOALS[game].items() if name in peers} | {"limit": 1.0},
        less_is_better=True,
        seeds=seeds,
        spread=(min(all_ours), max(all_ours)),
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    quick = getattr(args, "quick", False)
    minutes = getattr(args, "minutes", None) or (QUICK_MINUTES if quick else MINUTES)
    seeds = tuple(getattr(args, "seeds", ())) or (SEEDS[:1] if quick else SEEDS)
    peers = () if getattr(args, "only", None) else PEERS
    games = getattr(args, "games", None) or list(GOALS)
    runs = played(games, minutes, seeds, seeds[: getattr(args, "peer_seeds", None)], peers)
    cases = [case_of(game, minutes, seeds, runs[game]) for game in games]
    return ledger.result("league", cases, minutes=minutes, runs=runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="*", choices=list(GOALS))
    parser.add_argument("--only", choices=["ours"], help="leave out OpenSpiel's solvers")
    parser.add_argument("--seeds", nargs="*", type=int, default=[])
    parser.add_argument("--peer-seeds", type=int, metavar="N", help="how many of the seeds peers have (all)")
    parser.add_argument("--minutes", type=float, help=f"of each run ({MINUTES:g})")
    parser.add_argument("--quick", action="store_true")
    return ledger.print_result(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
