"""Rate a game's models and scripts by matches among them: `spar league GAME` plays, `spar league show GAME` shows,
`spar league diff GAME V1 V2` (or `diff ID ID`) compares two versions of a game.

Members are the game's scripts, its champions and its newest models. Each round every member plays a match, from both
sides of fresh openings, against one whose result is most open. Results are kept in the data folder, so another call
goes on where the last one stopped. Ratings are Elo above `script:random`, with 95 % confidence; `show` also has the
share of points of each against each, and how much of each is in the mixture that no member beats (Nash).
`diff` lets the scripts and models that can play both versions play both, and says which seat, first move and member
gained or lost.
Example: spar league connect-four --for 5m
"""

import argparse
import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.league_diff import diff_arguments, show_diff
from sparring.cli.output import Output, stopping
from sparring.config import open_data_folder
from sparring.errors import ConfigError, Missing

if TYPE_CHECKING:
    from sparring.league.payoff import Payoff, Rating

SHORT = 12
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
ANCHOR = "script:random"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", metavar="[show|diff] GAME", help="a game with opponents")
    parser.add_argument("--rounds", type=int, metavar="N", help="play N rounds (3, unless --for is given)")
    parser.add_argument("--for", dest="duration", metavar="TIME", help="play rounds until 90s, 10m or 2h are over")
    parser.add_argument("--models", type=int, default=10, metavar="N", help="members beside the scripts (10)")
    parser.add_argument("--games", type=int, default=64, metavar="N", help="games of one match (64)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="diff: draw it into a .png, .svg or .pdf")
    diff_arguments(parser)


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.what[0] == "diff" and len(args.what) > 1:
        return show_diff(args, output)
    game, show = args.what[-1], args.what[0] == "show" and len(args.what) == 2
    if len(args.what) != 1 + show:
        raise ConfigError(
            " ".join(args.what), where="spar league", do="Write: spar league [show] GAME, or diff GAME V1 V2"
        )
    for option, value in (("--rounds", args.rounds), ("--models", args.models), ("--games", args.games)):
        if value is not None and value < 1:
            raise ConfigError(f"{option} {value}", where="spar league", do="Count from 1")
    return _show(game, args, output) if show else _play(game, args, output)


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
    return _show(game, args, output)


def _show(game: str, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.games.catalogue import spec_of
    from sparring.league.matches import MatchFile
    from sparring.league.payoff import Payoff, nash_mixture, ratings

    with MatchFile(Path(args.config.data), spec_of(game).id) as file:
        matches = file.all()
    names = sorted({name for one in matches for name in (one.first, one.second)})
    if not names:
        raise Missing(f"no match of {game} was played yet", where="spar league", do=f"Play some: `spar league {game}`")
    payoff = Payoff.of(names, matches)
    ladder = ratings(payoff, ANCHOR if ANCHOR in names else None)
    mixture = dict(zip(names, nash_mixture(payoff.win_rates).round(4).tolist(), strict=True))
    rows = [
        (
            _short(one.member),
            f"{one.elo:+.0f}",
            _interval(one),
            one.games,
            f"{one.score:.1%}",
            f"{mixture[one.member]:.0%}",
        )
        for one in ladder
    ]
    output.table(("member", "Elo", "95 %", "games", "points", "Nash"), rows)
    output.say()
    _table_of_pairs(payoff, ladder, output)
    pairs = {
        name: dict(zip(names, row, strict=True)) for name, row in zip(names, payoff.win_rates.tolist(), strict=True)
    }
    return {"game": game, "matches": len(matches), "ratings": ladder, "nash": mixture, "win_rates": pairs}


def _table_of_pairs(payoff: "Payoff", ladder: "list[Rating]", output: Output) -> None:
    """The share of points of the row's member against the column's, in the order of the ladder."""
    order = [payoff.members.index(one.member) for one in ladder]
    rates, games = payoff.win_rates, payoff.games
    columns = [str(place + 1) for place in range(len(order))]
    rows = [
        (f"{place + 1} {_short(payoff.members[a])}", *(f"{rates[a, b]:.0%}" if games[a, b] else "" for b in order))
        for place, a in enumerate(order)
    ]
    output.table(("points of row against column", *columns), rows)


def _seconds(text: str | None) -> float:
    if text is None:
        return math.inf
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise ConfigError(f"--for {text}", where="spar league", do="Write a number and s, m or h, such as 10m")
    return float(found[1]) * UNITS_S[found[2]]


def _short(member: str) -> str:
    return member if member.startswith("script:") else member[:SHORT]


def _interval(one: "Rating") -> str:
    return f"{one.low:+.0f} to {one.high:+.0f}"
