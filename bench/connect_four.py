"""A long run of Connect Four by self-play: how the score against each script grows with time.

    python bench/connect_four.py --minutes 10 --folder runs-of-connect-four

The folder stays, so `spar evaluate champion:connect-four --against tactical --data FOLDER` looks again, and
`spar train connect-four --resume --data FOLDER` goes on. `spar bench connect-four` does it in a folder of its own.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import ledger

from sparring.acting.evaluate import evaluate
from sparring.config import load
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.train import TrainOptions, train
from sparring.registry import open_registry

GOALS = {"random": 0.9, "tactical": 0.6}  # share of games won, a draw as half
EPISODES = 400
SEEN_SEED = 77


def curve(folder: str, minutes: float, seed: int) -> list[dict[str, float]]:
    """The score of every model that was published on the way, oldest first."""
    config = load(None, (f"data={folder}",))
    result = train(
        TrainRequest("connect-four", seed=seed, steps=10**9),
        TrainOptions(minutes=minutes),
        config,
        lambda progress: None,
    )
    rows = []
    with open_registry(config.registry_url) as registry:
        mine = [one.card for one in registry.models(result.plan.spec.id) if one.card.lineage.run == result.run]
        for card in mine:
            model = registry.fetch(card.id)
            row = {"steps": float(sum(card.lineage.steps.values()))}
            for rival in GOALS:
                played = evaluate("connect-four", model, episodes=EPISODES, seed=SEEN_SEED, against=rival)
                row[rival] = played.score or 0.0
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The last model's scores beside what has to be reached."""
    minutes = getattr(args, "minutes", None) or (1.0 if getattr(args, "quick", False) else 10.0)
    seed = getattr(args, "seed", 0)
    folder = getattr(args, "folder", None)
    if folder is None:
        with tempfile.TemporaryDirectory() as passing:
            rows = curve(passing, minutes, seed)
    else:
        rows = curve(str(folder), minutes, seed)
    cases = [
        ledger.case(
            f"against {rival}",
            rows[-1][rival],
            "score",
            peers={"threshold": goal},
            goals={"threshold": 1.0},
            seeds=[seed],
        )
        for rival, goal in GOALS.items()
    ]
    return ledger.result("connect_four", cases, minutes=minutes, curve=rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the data folder here")
    return ledger.print_result(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
