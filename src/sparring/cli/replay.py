"""Play one recorded episode again, bit for bit: what each seat did, and whether the game gives the same once more.

Or one match of a league, named by the beginning of its id: whether its members make every move as they did.
Example: spar replay 0197a3c2-…
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparring.cli.league_show import short
from sparring.cli.output import Output, recorded_play
from sparring.errors import Missing
from sparring.games.catalogue import open_game
from sparring.games.resimulation import resimulate
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk
from sparring.wire.ids import EpisodeId, is_episode


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id", help="of an episode, as `spar collect` or the dashboard shows it; of a match, as `spar league show` does"
    )
    parser.add_argument("--quiet", action="store_true", help="only whether it is the same")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if not is_episode(args.id):
        return _match(args, output)
    with recorded_play(args.config) as store:
        chunks = _chunks(store, EpisodeId(args.id))
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
        "episode": args.id,
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


def _match(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Play a stored match again and say whether it went the same."""
    from sparring.league.match_replay import replay_match
    from sparring.league.matches import find_match
    from sparring.registry import open_registry

    game, stored = find_match(Path(args.config.data), args.id)
    with open_registry(args.config.registry_url) as registry:
        found = replay_match(game, stored, registry)
    again, different = found.again, found.differences()
    if not args.quiet:
        output.say(f"{game}: {short(stored.first)} against {short(stored.second)}, seed {stored.seed}")
        output.say(f"{again.wins} won, {again.draws} drawn, {again.losses} lost, {again.distinct} distinct games")
    for line in different:
        output.say(f"not the same: {line}")
    if not different:
        output.say(
            f"{stored.games} games, each move as it was" if stored.digest else f"{stored.games} games, same result"
        )
    counts = asdict(again)
    return {**counts, "game": game, "same": not different, "differences": different, "exit_code": int(bool(different))}
