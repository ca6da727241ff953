"""Train a game's bots in a league: main agents, exploiters that look for their weaknesses, and all that they were.

`spar league GAME` starts learners, evaluators, a pool of weights and the league's own service, on this machine or on
Ray, by ./league.toml where there is one, and goes on where the last call stopped. Main agents stand for champion.
`spar league rate GAME` only plays matches among scripts, champions and models. `spar league show GAME` has the ladder:
Elo above `script:random` with 95 % confidence, the share of points of each against each, and how much of each is in the
mixture that no member beats (Nash).
Example: spar league connect-four --for 10m
"""

import argparse
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output, stopping
from sparring.config import open_data_folder
from sparring.errors import ConfigError, Missing

if TYPE_CHECKING:
    from sparring.league.payoff import Payoff, Rating

SHORT = 12
LOOK_S = 2.0  # between two looks at a running league
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
ANCHOR = "script:random"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", metavar="[rate | show] GAME", help="a game with opponents")
    parser.add_argument("--file", type=Path, metavar="FILE", help="roles and services (./league.toml if it exists)")
    parser.add_argument("--on", metavar="URL", help="where services run: local://, ray://auto … (as the file says)")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="end once N main agents were frozen; of rate: N rounds (3)"
    )
    parser.add_argument("--for", dest="duration", metavar="TIME", help="end after 90s, 10m or 2h")
    parser.add_argument("--resume", action="store_true", help="go on with the game's league, as without it")
    parser.add_argument("--fresh", action="store_true", help="forget the game's league and begin another")
    parser.add_argument("--models", type=int, default=10, metavar="N", help="rate: members beside the scripts (10)")
    parser.add_argument("--games", type=int, default=64, metavar="N", help="rate: games of one match (64)")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    verb, game = (args.what[0], args.what[1]) if len(args.what) == 2 else ("", args.what[0])
    if len(args.what) > 2 or verb not in VERBS:
        raise ConfigError(" ".join(args.what), where="spar league", do="Write: spar league [rate | show] GAME")
    for option, value in (("--rounds", args.rounds), ("--models", args.models), ("--games", args.games)):
        if value is not None and value < 1:
            raise ConfigError(f"{option} {value}", where="spar league", do="Count from 1")
    return VERBS[verb](game, args, output)


def _learn(game: str, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.league.league_file import read_league
    from sparring.learn.league.launch import RunningLeague

    file = read_league(args.file)
    file = replace(file, on=args.on) if args.on else file
    until_s = time.monotonic() + _seconds(args.duration)
    if args.fresh:
        _forget(game, args)
    first: int | None = None
    said: dict[str, Any] = {}
    with RunningLeague(game, file, args.config) as league, stopping() as stopped:
        while time.monotonic() < until_s and not stopped.wait(LOOK_S):
            said = league.status() or said
            if "frozen" not in said:
                continue
            first = said["frozen"] if first is None else first
            output.progress(_line(said))
            if args.rounds is not None and said["frozen"] - first >= args.rounds:
                break
    shown = _show(game, args, output) if said.get("matches") else {"game": game, "matches": 0}
    return shown | {key: said[key] for key in ("learners", "members", "frozen", "verdict") if key in said}


def _line(said: dict[str, Any]) -> str:
    """The league in one line."""
    rates = {one["learner"]: one.get("steps_per_s", 0.0) for one in said["progress"]}
    learners = [
        f"{one['name']} {one['steps']:,} steps ({rates.get(one['name'], 0):,.0f}/s)" for one in said["learners"]
    ]
    members = f"{said['members']} members  {said['matches']} matches"
    return "  ".join([*learners, members, *([said["verdict"]] if said["verdict"] else [])])


def _forget(game: str, args: argparse.Namespace) -> None:
    """Move the game's league aside; its models and runs stay where they are."""
    from sparring.games.catalogue import spec_of
    from sparring.league.state import league_path

    path = league_path(Path(args.config.data), spec_of(game).id)
    for one in path.parent.glob(f"{path.name}*"):
        one.rename(one.with_name(one.name.replace(".db", f"-{int(time.time())}.db", 1)))


def _rate(game: str, args: argparse.Namespace, output: Output) -> dict[str, Any]:
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


VERBS = {"": _learn, "rate": _rate, "show": _show}
