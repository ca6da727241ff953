"""Strength against time: what a model of Connect Four gains by looking ahead.

    spar bench search                                        # alphazero for 8 minutes, then games for half an hour
    python -m bench.search --data FOLDER --model ID          # a model of your own (by default the champion there)
    spar bench search --plot search.png                      # draws the table, too

For each search_ms the model plays 50 drawn openings from both sides against itself without a search and against
alpha-beta of depth 4 (bench/alpha_beta.py); without a search 250. Each decision has its time to itself, on one thread.
The goal: with search_ms=100 it takes at least three quarters of the points from itself.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import ledger
from bench.alpha_beta import AlphaBeta, standard_error
from bench.champion import model_in
from bench.league_champion import trained

from sparring.acting.evaluate import evaluate
from sparring.acting.lookahead import Searching
from sparring.acting.players import Player
from sparring.wire.model import Model

GAME, DEPTH = "connect-four", 4
TIMES_MS = (0, 10, 30, 100, 300)
GOAL_MS, GOAL = 100, 0.75
GAMES, PLAIN_GAMES, MINUTES, SEED = 100, 500, 8.0, 2_026
ITSELF, ALPHA_BETA = "itself without a search", f"alpha-beta of depth {DEPTH}"


def rows_of(model: Model, games: int) -> list[dict[str, float]]:
    """The score against either opponent for every time, with its standard error."""
    rows = []
    for search_ms in TIMES_MS:
        player: Player = Searching(model, search_ms) if search_ms else model
        many = games if search_ms else games * PLAIN_GAMES // GAMES
        row = {"search_ms": float(search_ms), "games": float(many)}
        rivals: dict[str, Player] = {ALPHA_BETA: AlphaBeta(DEPTH, SEED)} | ({ITSELF: model} if search_ms else {})
        for name, rival in rivals.items():
            played = evaluate(GAME, player, episodes=many, seed=SEED, against=rival)
            row |= {name: played.score or 0.0, f"{name}, error": standard_error(played)}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def plot(said: dict[str, Any], file: Path) -> None:
    """The scores over the time, with two standard errors."""
    from matplotlib.figure import Figure

    rows = said["rows"]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name in (ITSELF, ALPHA_BETA):
        found = [row for row in rows if name in row]
        errors = [2 * row[f"{name}, error"] for row in found]
        x, y = [row["search_ms"] for row in found], [row[name] for row in found]
        axes.errorbar(x, y, errors, marker="o", capsize=3, label=f"against {name}")
    axes.set(xscale="symlog", xticks=TIMES_MS, xticklabels=TIMES_MS, ylim=(0, 1))
    axes.set(xlabel="search_ms", ylabel="share of points", title=f"{GAME}: strength against time")
    axes.minorticks_off()
    axes.legend()
    figure.savefig(file)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    quick = getattr(args, "quick", False)
    data: Path | None = getattr(args, "data", None)
    if data is None:
        with tempfile.TemporaryDirectory() as folder:
            minutes = 0.5 if quick else MINUTES
            words = ["train", GAME, "--algo", "alphazero", "--minutes", f"{minutes:g}", "--steps", str(10**9)]
            model = trained(Path(folder), words, minutes)
    else:
        model = model_in(data, args.model)
    rows = rows_of(model, getattr(args, "games", None) or (4 if quick else GAMES))
    cases = []
    for row in rows:
        for name in (ITSELF, ALPHA_BETA):
            if name in row:
                goal = {"an equal": GOAL / 0.5} if (name, row["search_ms"]) == (ITSELF, GOAL_MS) else {}
                error, about = row[f"{name}, error"], f"search_ms={row['search_ms']:g} against {name}"
                spread = (row[name] - 2 * error, row[name] + 2 * error)
                case = ledger.case(about, row[name], "score", peers={"an equal": 0.5}, goals=goal, spread=spread)
                cases.append(case)
    return ledger.result("search", cases, model=model.id, rows=rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a data folder; by default a model is trained")
    parser.add_argument("--model", help="of that folder (its champion)")
    parser.add_argument("--games", type=int, default=GAMES, help="for each time and opponent")
    parser.add_argument("--plot", type=Path, help="a .png or .svg")
    args = parser.parse_args()
    said = run(args)
    if args.plot is not None:
        plot(said, args.plot)
    return ledger.print_result(said)


if __name__ == "__main__":
    sys.exit(main())
