"""Train a game's bots in a league: main agents, exploiters that look for their weaknesses, and all that they were.

`spar league GAME` starts learners, evaluators, a pool of weights and the league's own service, on this machine or on
Ray, by ./league.toml where there is one, and goes on where the last call stopped. Main agents stand for champion.
`spar league rate GAME` only plays matches among scripts, champions and models, which `spar replay ID` plays again;
`spar league diff GAME V1 V2` (or `diff ID ID`) lets the players of a game play two versions of it, and says which seat,
first move and member gained or lost.
`spar league show GAME` has the ladder: Elo above `script:random` with 95 % confidence, openskill's mean and deviation,
the share of points of each against each, how much of each is in the mixture that no member beats (Nash) and what it
scores against that, alpha-rank, and how transitive the league is (spinning top).
Example: spar league connect-four --for 10m
"""

import argparse
import math
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparring.cli.league_diff import diff_arguments, show_diff
from sparring.cli.league_show import show
from sparring.cli.output import Output, stopping
from sparring.config import open_data_folder
from sparring.errors import ConfigError, Missing, SparringError

LOOK_S = 2.0  # between two looks at a running league
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="+",
        metavar="[rate | show] GAME | diff GAME V1 V2",
        help="a game with opponents",
    )
    parser.add_argument("--file", type=Path, metavar="FILE", help="roles and services (./league.toml if it exists)")
    parser.add_argument("--on", metavar="URL", help="where services run: local://, ray://auto … (as the file says)")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="end once N main agents were frozen; of rate: N rounds (3)"
    )
    parser.add_argument("--for", dest="duration", metavar="TIME", help="end after 90s, 10m or 2h")
    parser.add_argument("--resume", action="store_true", help="go on with the game's league, as without it")
    parser.add_argument("--fresh", action="store_true", help="put the game's league aside and begin another")
    parser.add_argument("--models", type=int, default=10, metavar="N", help="rate: members beside the scripts (10)")
    parser.add_argument("--games", type=int, default=64, metavar="N", help="rate: games of one match (64)")
    parser.add_argument("--people", action="store_true", help="show: people's recorded games too, persons as members")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="show, diff: draw it into a .png, .svg or .pdf")
    diff_arguments(parser)


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.what[0] == "diff" and len(args.what) > 1:
        return show_diff(args, output)
    verb, name = args.what if len(args.what) == 2 else ("", args.what[0])
    if len(args.what) > 2 or verb not in VERBS:
        do = "Write: spar league [rate | show] GAME, or spar league diff GAME V1 V2"
        raise ConfigError(" ".join(args.what), where="spar league", do=do)
    for option, value in (("--rounds", args.rounds), ("--models", args.models), ("--games", args.games)):
        if value is not None and value < 1:
            raise ConfigError(f"{option} {value}", where="spar league", do="Count from 1")
    return VERBS[verb](name, args, output)


def _learn(game: str, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.league.league_file import read_league
    from sparring.learn.league.launch import RunningLeague

    file = read_league(args.file)
    file = replace(file, on=args.on) if args.on else file
    until_s = time.monotonic() + _seconds(args.duration)
    first: int | None = None
    said: dict[str, Any] = {}
    with RunningLeague(game, file, args.config, fresh=args.fresh) as league, stopping() as stopped:
        while time.monotonic() < until_s and not stopped.wait(LOOK_S):
            said = league.status() or said
            if "frozen" not in said:
                continue
            first = said["frozen"] if first is None else first
            output.progress(_line(said))
            if args.rounds is not None and said["frozen"] - first >= args.rounds:
                break
    shown = show(game, args, output) if said.get("matches") else {"game": game, "matches": 0}
    if not said.get("matches"):
        output.say("no match was played yet, so nothing is rated or sold; the same call goes on from here")
    if said.get("matches") and file.promote:
        _sell(game, args, output)
    return shown | {key: said[key] for key in ("learners", "members", "frozen", "verdict") if key in said}


def _line(said: dict[str, Any]) -> str:
    """The league in one line."""
    rates = {one["learner"]: one.get("steps_per_s", 0.0) for one in said["progress"]}
    learners = [
        f"{one['name']} {one['steps']:,} steps ({rates.get(one['name'], 0):,.0f}/s)" for one in said["learners"]
    ]
    members = f"{said['members']} members  {said['matches']} matches"
    return "  ".join([*learners, members, *([said["verdict"]] if said["verdict"] else [])])


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
        raise Missing(
            f"{game} has one player only", where="spar league", do=f"Train one: `spar train {shlex.quote(game)}`"
        )
    done, rng = 0, np.random.default_rng()
    with MatchFile(data, spec_of(game).id) as file, stopping() as stopped:
        while done < rounds and time.monotonic() < until_s and not stopped.is_set():
            played = play_round(game, members, file, args.games, rng)
            done += 1
            output.progress(
                f"round {done}: {len(played)} matches, {sum(one.distinct for one in played)} distinct games"
            )
    shown = show(game, args, output)
    _sell(game, args, output)
    return shown


def _sell(game: str, args: argparse.Namespace, output: Output) -> None:
    """Make the ladder of strengths anew; a league that has nothing to sell yet says why."""
    from sparring.games.catalogue import spec_of
    from sparring.league.strengths import make_strengths
    from sparring.registry import open_registry

    output.say("rebuilding the ladder of strengths: its models play each other, which takes minutes …")
    with open_registry(args.config.registry_url) as registry:
        try:
            made = make_strengths(registry, Path(args.config.data), spec_of(game), tell=output.progress)
            registry.sell(made)
            styles = f" in the styles {', '.join(one.name for one in made.styles)}" if made.styles else ""
            output.say(
                f"a ladder of {len(made.steps)} strengths is sold{styles}: `spar models strengths {game}` shows it"
            )
        except SparringError as error:
            output.say(f"no ladder of strengths was made: {error}")


def _seconds(text: str | None) -> float:
    if text is None:
        return math.inf
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise ConfigError(f"--for {text}", where="spar league", do="Write a number and s, m or h, such as 10m")
    return float(found[1]) * UNITS_S[found[2]]


VERBS = {"": _learn, "rate": _rate, "show": show}
