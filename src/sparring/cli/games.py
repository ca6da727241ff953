"""List the games, or check that one keeps the game protocol.

`spar games list` shows the built-in games and those of `games` in spar.toml. `spar games check GAME` plays random
episodes of a game (an id such as duel, gym:CartPole-v1, pz:tictactoe_v3, spiel:kuhn_poker or module:function) and
checks it against the protocol; of the path of a TOML spec it checks the spec. Example: spar games check duel
"""

import argparse
from pathlib import Path
from typing import Any

from sparring.cli.output import Output
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import BUILT_IN, Catalogue, open_game, spec_of
from sparring.games.conformance import check_conformance
from sparring.games.spec import GameSpec, Leaf, read


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "check"])
    parser.add_argument("game", nargs="?", default="", metavar="GAME", help="check: an id, or the path of a TOML spec")
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="check: to play (20)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="check: of the first episode (0)")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.action == "list":
        return _list(args, output)
    if not args.game:
        raise ConfigError("no game is named", where="spar games check", do="Name one, such as `spar games check duel`")
    if args.game.endswith(".toml"):
        return _check_spec(Path(args.game), output)
    return _check_game(args.game, args.episodes, args.seed, output)


def _list(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    specs = Catalogue.from_config(args.config).games()
    rows = [_row(spec, "built in" if spec.id in BUILT_IN else "spar.toml") for spec in specs]
    output.table(
        ("id", "version", "turns", "seats", "observation", "actions", "from"), [list(row.values()) for row in rows]
    )
    output.say("\nmore by id: gym:CartPole-v1, pz:connect_four_v3, spiel:kuhn_poker, module:function")
    return {"games": rows}


def _row(spec: GameSpec, origin: str) -> dict[str, Any]:
    seat = spec.seats[0]  # a table has room for one; `spar games check` says them all
    return {
        "id": spec.id,
        "version": spec.version,
        "turns": spec.turns,
        "seats": len(spec.seats),
        "observation": ", ".join(_shape(leaf) for leaf in seat.observation),
        "actions": _shape(seat.action),
        "from": origin,
    }


def _shape(leaf: Leaf) -> str:
    if leaf.choices:
        return f"{' x '.join(map(str, leaf.choices))} choices"
    return f"{leaf.kind} {'x'.join(map(str, leaf.shape))} {leaf.dtype}"


def _check_spec(path: Path, output: Output) -> dict[str, Any]:
    if not path.is_file():
        raise Missing("there is no such file", where=str(path), do="Give the path of a spec in TOML")
    spec = read(path)
    _describe(spec, output)
    output.say("the spec is whole")
    return {"game": spec.id, "version": spec.version, "hash": spec.hash, "broken": []}


def _check_game(game: str, episodes: int, seed: int, output: Output) -> dict[str, Any]:
    if episodes < 1:
        raise ConfigError(f"--episodes {episodes}", where="spar games check", do="Play at least one")
    spec = spec_of(game)
    _describe(spec, output)
    found = check_conformance(lambda n: open_game(game, n), episodes, seed)
    for fault in found.broken:
        output.say(f"broken: {fault}")
    verdict = "every promise is kept" if not found.broken else f"{len(found.broken)} promises are broken"
    output.say(f"{found.episodes} episodes, {found.steps} steps: {verdict}")
    said = {"game": spec.id, "version": spec.version, "hash": spec.hash, "episodes": found.episodes}
    return said | {"steps": found.steps, "broken": list(found.broken), "exit_code": 1 if found.broken else 0}


def _describe(spec: GameSpec, output: Output) -> None:
    output.say(f"{spec.id} version {spec.version}, {spec.turns}, at most {spec.max_ticks} ticks, spec {spec.hash[:12]}")
    for number, seat in enumerate(spec.seats):
        seen = ", ".join(f"{leaf.name} ({_shape(leaf)})" for leaf in seat.observation)
        low, high = seat.reward_bounds
        place = f"seat {number} {seat.name!r}" + (f" of team {seat.team}" if len(spec.seats) > 1 else "")
        output.say(f"  {place}: sees {seen}; {_shape(seat.action)}; earns {low:g} to {high:g}")
