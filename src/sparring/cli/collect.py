"""Let mock players play GAME and upload it through the real client to a running gateway.

Each client is one player with one skill (random, script or model, taken in turn from --skills); in games with
several seats they play each other. They pick up new champions between episodes.
Example: spar collect connect-four --clients 8 --episodes 500
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec

from sparring.cli.output import TOKEN, Output, token_argument
from sparring.client.connection import connect
from sparring.client.gateway import Gateway
from sparring.client.mock_players import MockPlayer, play, script_of
from sparring.errors import ConfigError, Unreachable
from sparring.games.catalogue import open_game, spec_of
from sparring.games.protocol import Game

COUNTED: tuple[str, ...] = ("acknowledged_chunks", "had_chunks", "refused_chunks", "dropped_steps", "dropped_chunks")
COUNTED += ("waiting_chunks", "episodes_not_asked")
EXPLORING_STRENGTH = 0.9  # a mock player with a model takes a random action in one of ten


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("game", metavar="GAME")
    parser.add_argument("--clients", type=int, default=4, metavar="N", help="players at once (default: 4)")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="in total (default: 100)")
    parser.add_argument("--to", default="http://127.0.0.1:8700", metavar="URL", help="the gateway")
    token_argument(parser, "an API key or player token")
    parser.add_argument("--trust", metavar="KEY", help="the key that signs champions, as `spar serve` prints it")
    parser.add_argument("--skills", default="random,script,model", help="of random, script, model")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the games and of the players' random choices"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="share the clients out (default: 1)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="spools and models (default: in the data folder)")
    parser.add_argument("--wait", type=float, default=60.0, metavar="S", help="for the last uploads")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)  # number of the first episode


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    for name in ("clients", "episodes", "processes"):
        if getattr(args, name) < 1:
            raise ConfigError(f"{getattr(args, name)}", where=f"--{name}", do="Give at least 1")
    _check_gateway(args)
    begun_s = time.perf_counter()
    result = _in_processes(args, output) if args.processes > 1 else _in_threads(args, output)
    result["seconds"] = round(time.perf_counter() - begun_s, 3)
    result["steps_per_s"] = round(result["steps"] / result["seconds"])
    _report(result, output)
    lost = result["waiting_chunks"] + result["refused_chunks"] + result["dropped_steps"] + result["dropped_chunks"]
    return {"game": args.game, "clients": args.clients, "seed": args.seed, **result, "exit_code": int(lost > 0)}


def _check_gateway(args: argparse.Namespace) -> None:
    """Missing or Unreachable before any game; the client itself would spool and wait."""
    with closing(Gateway(args.to, args.game, args.token, 5.0, None)) as gateway:
        gateway.spec()


def _in_threads(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    numbers = iter(range(args.first, args.first + args.episodes))  # shared by the tables' threads
    played: list[int] = []  # decisions of each episode that is over
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(args.clients, "table"))
        players = [_player(args, number, stack) for number in range(args.clients)]
        seats = min(len(spec_of(args.game).seats), len(players))
        tables = [players[at : at + seats] for at in range(0, len(players) - seats + 1, seats)]
        tables[-1] += players[len(tables) * seats :]  # the remaining players take turns at the last table
        games = [open_game(args.game) for _ in tables]
        running = [pool.submit(_play_all, *at, numbers, args.seed, played) for at in zip(games, tables, strict=True)]
        begun_s, waiting = time.monotonic(), set(running)
        while waiting:
            done, waiting = wait(waiting, 1.0, FIRST_EXCEPTION)
            if any(one.exception() for one in done):
                list(numbers)  # none is left: the other tables end their episode and stop
            rate = sum(played) / (time.monotonic() - begun_s)
            output.progress(f"{len(played)} episodes, {sum(played)} steps, {rate:,.0f} steps/s")
        for one in running:
            one.result()
        deadline_s = time.monotonic() + args.wait
        for player in players:
            player.connection.flush(max(0.1, deadline_s - time.monotonic()))
        counted = [player.connection.statistics() for player in players]
    unsent = [one for one in counted if one.waiting_chunks or one.refused_chunks]
    for problem in sorted({one.last_problem for one in unsent if one.last_problem}):
        output.say(f"note: {problem}")
    sums = {name: sum(getattr(one, name) for one in counted) for name in COUNTED}
    return {"episodes": len(played), "steps": sum(played), **sums}


def _player(args: argparse.Namespace, number: int, stack: ExitStack) -> MockPlayer:
    skills = [skill.strip() for skill in args.skills.split(",")]
    skill = skills[number % len(skills)]
    connection = connect(
        args.to,
        args.game,
        f"mock-{args.first}-{number}",
        token=args.token,
        trust=args.trust,
        strength=EXPLORING_STRENGTH,
        folder=args.folder or Path(args.config.data) / "clients",
        seed=args.seed * 1_000_003 + args.first + number,
        poll_every_s=2.0 if skill == "model" else 3600.0,
        retry_most_s=2.0,
    )
    stack.callback(connection.close, 1.0)
    player = MockPlayer(connection, script_of(skill, connection.spec))
    if skill == "model":
        connection.wait_for_model(5.0)
    return player


def _play_all(game: Game, table: list[MockPlayer], numbers: Iterator[int], seed: int, played: list[int]) -> None:
    """Play until there are no episodes left."""
    for number in numbers:
        played.append(play(game, table, number, seed))


def _in_processes(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Each process is a `spar collect` of its own share; their counts are added up."""
    count = min(args.processes, args.clients, args.episodes)
    flags = ["--to", args.to, "--skills", args.skills, "--seed", str(args.seed), "--wait", str(args.wait)]
    flags += ["--trust", args.trust] if args.trust else []
    flags += ["--folder", str(args.folder or Path(args.config.data) / "clients"), "--json"]
    around = os.environ | ({TOKEN: args.token} if args.token else {})  # a list of processes shows commands
    children = []
    with ExitStack() as stack:
        first = args.first
        for part in range(count):
            episodes = args.episodes // count + (part < args.episodes % count)
            clients = args.clients // count + (part < args.clients % count)
            share = ["--clients", str(clients), "--episodes", str(episodes), "--first", str(first)]
            command = [sys.executable, "-m", "sparring", "collect", args.game, *share, *flags]
            child = subprocess.Popen(command, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            children.append(stack.enter_context(child))
            stack.callback(child.terminate)  # runs first; a child that has ended does not mind
            first += episodes
        ended = [child.communicate() for child in children]
    totals: dict[str, Any] = {}
    for said, complained in ended:
        last = said.splitlines()[-1:] or ["{}"]
        counts = msgspec.json.decode(last[0], type=dict[str, Any])
        if "steps" not in counts:
            raise Unreachable(f"a process failed: {complained.strip()[-500:]}", where="spar collect", do="Correct that")
        for name in ("episodes", "steps", *COUNTED):
            totals[name] = totals.get(name, 0) + counts[name]
    return totals


def _report(result: dict[str, Any], output: Output) -> None:
    output.say(
        f"{result['episodes']} episodes, {result['steps']} steps in {result['seconds']:.1f} s "
        f"({result['steps_per_s']:,} steps/s); chunks: {result['acknowledged_chunks']} acknowledged, "
        f"{result['refused_chunks']} refused, {result['dropped_chunks']} dropped, {result['waiting_chunks']} waiting"
    )
    if result["episodes_not_asked"]:
        output.say(f"{result['episodes_not_asked']} seats' episodes were not asked for (sample rate)")
    if result["waiting_chunks"]:
        output.say("What waits is on disk and goes out with the next `spar collect` to the same gateway.")
