"""A league's champion of Connect Four against alpha-beta of depth 4, which nobody trained against.

    spar bench champion                        # a league of 50 minutes, then 20 minutes of games
    python -m bench.champion --keep FOLDER     # the same; the league's folder stays
    python -m bench.champion --data FOLDER     # the champion of a data folder that is there
    spar bench champion --quick                # 1 minute and few games: whether it runs, not how well

The champion's network alone plays 510 drawn openings from both sides, and so it does with search_ms=100, one decision
after the other on one thread. Alpha-beta (bench/alpha_beta.py, its evaluation is stated there) draws among equal moves.
`distinct` counts the games that differ. Agreement: of 500 positions of random play in which the moves are not all
equal, the share in which the network's move is one of the best by alpha-beta of depth 10, exactly. Goals: 55 % of the
points for the network, 85 % with the search. The league is that of examples/connect-four-champion.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bench import ledger
from bench.alpha_beta import AlphaBeta, standard_error
from bench.league_champion import trained

from sparring.acting.evaluate import evaluate
from sparring.acting.lookahead import Searching
from sparring.acting.players import Player, named
from sparring.games.catalogue import open_game
from sparring.nets.forward import forward_without_torch
from sparring.nets.model_files import read_weights
from sparring.nets.policies import masked
from sparring.registry.file import FileRegistry
from sparring.wire.chunk import Array
from sparring.wire.model import Model

GAME, DEPTH, SEARCH_MS, JUDGE_DEPTH, SEED = "connect-four", 4, 100.0, 10, 2_026
GOALS = {"network alone": 0.55, "search_ms=100": 0.85}
MINUTES, QUICK_MINUTES, POSITIONS, GAMES = 50.0, 1.0, 500, 1_020
EXAMPLE = ledger.ROOT / "examples" / "connect-four-champion"  # its league.toml, and the network that it names


def of_league(minutes: float, keep: Path | None) -> Model:
    """The champion of a league of that many minutes on all cores."""
    with tempfile.TemporaryDirectory() as folder:
        return trained(set_up(keep or Path(folder)), ["league", GAME, "--for", f"{60 * minutes:g}s"], minutes)


def set_up(folder: Path) -> Path:
    """A folder, made where it is not there, in which `spar league` is that of the example."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("league.toml", "spar.toml", "four_lines.py"):
        shutil.copy(EXAMPLE / name, folder)
    return folder


def model_in(data: Path, name: str | None = None) -> Model:
    """A model of a data folder; its champion where none is named."""
    found = named(name or f"champion:{GAME}", FileRegistry(data / "models"), GAME).player
    assert isinstance(found, Model)
    return found


def score(player: Player, games: int) -> dict[str, float]:
    """The player's share of points against alpha-beta, its standard error, and how many games differed."""
    played = evaluate(GAME, player, episodes=games, seed=SEED, against=AlphaBeta(DEPTH, SEED))
    assert played.digests is not None
    distinct = float(len(set(played.digests.tolist())))
    return {"score": played.score or 0.0, "error": standard_error(played), "distinct": distinct}


def positions(count: int) -> tuple[Array, Array]:
    """Boards of random play as who is to move sees them, each of another game, with what is legal."""
    rng, game = np.random.default_rng(SEED), open_game(GAME, count)
    view = game.reset(np.zeros(count, np.uint64), np.ones(count, bool))
    boards, legal, length = view.observation[0]["observation/board"], view.legal[0], rng.integers(1, 30, count)
    assert legal is not None
    for tick in range(30):
        mask = view.legal[tick % 2]
        assert mask is not None
        here = ~view.over & (length >= tick)
        boards = np.where(here[:, None, None, None], view.observation[tick % 2]["observation/board"], boards)
        legal = np.where(here[:, None], mask, legal)
        moves = masked(rng.random((count, 7)).astype(np.float32), mask).argmax(axis=1).astype(np.int32)
        view = game.step([moves, moves])
    return boards, legal


def agreement(model: Model, count: int, depth: int = JUDGE_DEPTH) -> dict[str, float]:
    """How often the network's move is one of the best by a deep search, where it matters which is made."""
    boards, legal = positions(2 * count)
    values = AlphaBeta(depth).values(boards)
    best = values.max(axis=1, keepdims=True)
    matters = np.flatnonzero((np.where(legal, values, best) < best).any(axis=1))[:count]
    out = forward_without_torch(model.card.network, read_weights(model))({"observation/board": boards[matters]})
    moves = masked(out["logits"], legal[matters]).argmax(axis=1)
    right = values[matters, moves] == best[matters, 0]
    chance = ((values[matters] == best[matters]) & legal[matters]).sum(axis=1) / legal[matters].sum(axis=1)
    return {"agreement": float(right.mean()), "by chance": float(chance.mean()), "positions": float(len(matters))}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    quick, data = getattr(args, "quick", False), getattr(args, "data", None)
    minutes = QUICK_MINUTES if quick else getattr(args, "minutes", None) or MINUTES
    keep, name = getattr(args, "keep", None), getattr(args, "model", None)
    model = of_league(minutes, keep) if data is None else model_in(data, name)
    players: dict[str, tuple[Player, int]] = {"network alone": (model, 8 if quick else GAMES)}
    players["search_ms=100"] = (Searching(model, SEARCH_MS), 4 if quick else GAMES)
    cases = []
    for name, (player, games) in players.items():
        row = score(player, games)
        print(json.dumps({"player": name, **row}), file=sys.stderr, flush=True)
        spread = (row["score"] - 2 * row["error"], row["score"] + 2 * row["error"])
        about = f"{name} against alpha-beta of depth {DEPTH}, {games} games, {row['distinct']:.0f} distinct"
        goals = {"an equal": GOALS[name] / 0.5}
        cases.append(ledger.case(about, row["score"], "score", peers={"an equal": 0.5}, goals=goals, spread=spread))
    agreed = agreement(model, 20 if quick else POSITIONS)
    about = f"moves that are best by depth {JUDGE_DEPTH}, of {agreed['positions']:.0f} random positions"
    cases.append(ledger.case(about, agreed["agreement"], "share", peers={"a random move": agreed["by chance"]}))
    return ledger.result("champion", cases, model=model.id, steps=dict(model.card.lineage.steps))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a data folder; by default a league is run")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the league runs; by default it is gone then")
    parser.add_argument("--model", help="of that data folder (its champion)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of the league")
    return ledger.print_result(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
