"""A league's champion of Connect Four against that of plain training, after the same time on the same machine.

    spar bench league-champion                             # 30 minutes each, three seeds: more than three hours
    python -m bench.league_champion --minutes 5 --seeds 1  # shorter
    spar bench league-champion --quick                     # a minute each, one seed: whether it runs, not how well

For each seed `spar train connect-four` and `spar league connect-four` are run one after the other, each alone, for the
same wall-clock time, with the defaults of both; the gate's games are part of it. Then the two champions play 1,000
openings from both sides; `distinct` says how many of the games were. The figure is the league's share of points; the
median of the seeds has to reach 60 %.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import ledger

from sparring.acting.evaluate import evaluate
from sparring.league.promotion import incumbent_of
from sparring.registry.file import FileRegistry
from sparring.wire.model import Model

GAME, GOAL = "connect-four", 0.6
GAMES, SEED = 2_000, 2_026  # 1,000 openings from both sides
MINUTES, SEEDS = 30.0, 3


def champion(folder: Path) -> Model:
    """The newest champion in a data folder."""
    registry = FileRegistry(folder / "models")
    newest = max((one.card for one in registry.models(GAME)), key=lambda card: card.created_at_ms)
    found = incumbent_of(registry, newest)
    if found is None:
        raise SystemExit(f"no model became champion in {folder}; train for longer")
    return found


def trained(folder: Path, words: list[str]) -> Model:
    """The champion after `spar` with those words."""
    command = [sys.executable, "-m", "sparring", *words, "--data", str(folder)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return champion(folder)


def compare(minutes: float, seed: int) -> dict[str, float]:
    """Both trained with one seed; what the league's champion scored."""
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as league:
        Path(league, "league.toml").write_text(f"seed = {1000 * seed}\n")
        limits = ["--minutes", f"{minutes:g}", "--steps", str(10**9)]
        one = trained(Path(plain), ["train", GAME, *limits, "--seed", str(seed)])
        two = trained(Path(league), ["league", GAME, "--for", f"{60 * minutes:g}s"])
        played = evaluate(GAME, two, episodes=GAMES, seed=SEED, against=one)
    assert played.digests is not None
    found = {"score": played.score or 0.0, "distinct": float(len(set(played.digests.tolist())))}
    print(json.dumps({"seed": seed, **found}), file=sys.stderr, flush=True)
    return found


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    quick = getattr(args, "quick", False)
    minutes = getattr(args, "minutes", None) or (1.0 if quick else MINUTES)
    seeds = list(range(getattr(args, "seeds", None) or (1 if quick else SEEDS)))
    found = [compare(minutes, seed) for seed in seeds]
    scores = [one["score"] for one in found]
    case = ledger.case(
        "share of points against plain training's champion",
        statistics.median(scores),
        "score",
        peers={"plain training": 1.0 - statistics.median(scores)},
        goals={"plain training": GOAL / (1.0 - GOAL)},
        seeds=seeds,
        spread=(min(scores), max(scores)),
    )
    return ledger.result("league_champion", [case], minutes=minutes, games=GAMES, runs=found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    said = run(parser.parse_args())
    print(json.dumps(said))
    return 0 if said["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
