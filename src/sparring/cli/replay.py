"""Play one recorded episode again, bit for bit: what each seat did, and whether the game gives the same once more.

Example: spar replay 0197a3c2-…
"""

import argparse
from dataclasses import asdict
from typing import Any

from sparring.cli.output import Output, recorded_play
from sparring.errors import Missing
from sparring.games.catalogue import open_game
from sparring.games.resimulation import resimulate
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk
from sparring.wire.ids import EpisodeId


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("episode", help="its id, as `spar collect` or the dashboard shows it")
    parser.add_argument("--quiet", action="store_true", help="only whether it is the same")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    with recorded_play(args.config) as store:
        chunks = _chunks(store, EpisodeId(args.episode))
    head = chunks[0].header
    if not args.quiet:
        output.say(f"{head.game} version {head.version}, seed {head.seed}")
        output.table(("tick", "seat", "step", "actor", "action", "reward"), _steps(chunks))
    found = resimulate(chunks, open_game(head.game))
    for one in found.mismatches:
        output.say(f"seat {one.seat} step {one.step}: {one.what} was {one.recorded}, the game gives {one.simulated}")
    if not found.mismatches:
        output.say(f"{found.steps} steps, each as the game gives it again")
    return {
        "episode": args.episode,
        "game": head.game,
        "version": head.version,
        "seed": head.seed,
        "steps": found.steps,
        "same": not found.mismatches,
        "mismatches": [asdict(one) for one in found.mismatches],
        "exit_code": 1 if found.mismatches else 0,
    }


def _chunks(store: Store, episode: EpisodeId) -> list[Chunk]:
    for game in store.games():
        if chunks := list(store.read(Query(game, episodes=(episode,)))):
            return chunks
    raise Missing(f"no chunk of episode {episode}", where="the store", do="Check the id, and --data")


def _steps(chunks: list[Chunk]) -> list[tuple[object, ...]]:
    rows = [
        (int(tick), chunk.header.seat, chunk.header.first_step + n, chunk.header.actor[:18], action, f"{reward:.6g}")
        for chunk in chunks
        for n, (tick, action, reward) in enumerate(
            zip(chunk.columns["tick"], chunk.columns["action"].tolist(), chunk.columns["reward"], strict=True)
        )
    ]
    return sorted(rows, key=lambda row: (row[0], row[1]))
