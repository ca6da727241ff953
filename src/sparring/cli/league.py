"""Rate a game's models and scripts by matches among them: `spar league GAME` plays, `spar league show GAME` shows, and
`spar league match ID` plays a stored match again, and says whether every move was the same.

Members are the game's scripts, its champions and its newest models. Each round every member plays a match, from both
sides of fresh openings, against one whose result is most open. Results are kept in the data folder, so another call
goes on where the last one stopped. Ratings are Elo above `script:random`, with 95 % confidence; `show` also has
openskill's mean and deviation, the share of points of each against each, how much of each is in the mixture that no
member beats (Nash) and what it scores against that, alpha-rank, and how transitive the league is (spinning top).
Example: spar league connect-four --for 5m
"""

import argparse
import math
import re
import time
from pathlib import Path
from typing import Any

from sparring.cli.league_show import match, show
from sparring.cli.output import Output, stopping
from sparring.config import open_data_folder
from sparring.errors import ConfigError, Missing

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", metavar="[show] GAME | match ID", help="a game with opponents; a match")
    parser.add_argument("--rounds", type=int, metavar="N", help="play N rounds (3, unless --for is given)")
    parser.add_argument("--for", dest="duration", metavar="TIME", help="play rounds until 90s, 10m or 2h are over")
    parser.add_argument("--models", type=int, default=10, metavar="N", help="members beside the scripts (10)")
    parser.add_argument("--games", type=int, default=64, metavar="N", help="games of one match (64)")
    parser.add_argument("--people", action="store_true", help="show: people's recorded games too, persons as members")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="show: draw it into a .png, .svg or .pdf")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    verb, name = args.what if len(args.what) == 2 else ("play", args.what[0])
    if len(args.what) > 2 or verb not in ("play", "show", "match"):
        do = "Write: spar league [show] GAME, or spar league match ID"
        raise ConfigError(" ".join(args.what), where="spar league", do=do)
    for option, value in (("--rounds", args.rounds), ("--models", args.models), ("--games", args.games)):
        if value is not None and value < 1:
            raise ConfigError(f"{option} {value}", where="spar league", do="Count from 1")
    return {"play": _play, "show": show, "match": match}[verb](name, args, output)


def _play(game: str, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    import numpy as np

    from sparring.games.catalogue import spec_of
    from sparring.league.matches import MatchFile
    from sparring.league.rounds import members_of, play_round
    from sparring.registry import open_registry

    data, until_s = Path(args.config.data), time.monotonic() + _seconds(args.duration)
    rounds = args.rounds or (math.inf if args.duration else 3)
    open_data_folder(data)
    with open_registry(args.config.registry_url) as registry:
        members = members_of(game, registry, args.models)
    if len(members) < 2:
        raise Missing(f"{game} has one player only", where="spar league", do=f"Train one: `spar train {game}`")
    done, rng = 0, np.random.default_rng()
    with MatchFile(data, spec_of(game).id) as file, stopping() as stopped:
        while done < rounds and time.monotonic() < until_s and not stopped.is_set():
            played = play_round(game, members, file, args.games, rng)
            done += 1
            output.progress(
                f"round {done}: {len(played)} matches, {sum(one.distinct for one in played)} distinct games"
            )
    return show(game, args, output)


def _seconds(text: str | None) -> float:
    if text is None:
        return math.inf
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise ConfigError(f"--for {text}", where="spar league", do="Write a number and s, m or h, such as 10m")
    return float(found[1]) * UNITS_S[found[2]]
