"""Run everything on this machine: gateway, store, training, dashboard, and games to play in the browser.

It trains CartPole first, in about a minute; then Connect Four and Duel, each in a league, from games among its
members and from yours. A model that proves better than the champion replaces it, so the bot in the browser gets better
while you watch. Ctrl-C stops everything; started again, it goes on from its last checkpoints. Example: spar demo --open
"""

import argparse
import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from sparring.cli.output import Output, spar_command, stopping
from sparring.durable import disk_errors, replace_file
from sparring.errors import ConfigError, Unreachable
from sparring.processes.supervisor import Launch, RestartPolicy, Supervisor

FIRST = "cartpole"
NICE = 10  # training gives way to the game on the screen
READY_S = 60.0
LOOP_S = 0.1
STOP_S = 4.0  # a league ends after its services, to which its host gives 2.8 s for a last checkpoint
LOOK_EVERY_S = 2.0
GIVE_UP_AFTER = 3  # starts of a run that failed, one after the other
CARTPOLE_FIRST_S = 180.0  # for CartPole; then the other games begin beside it
# Exploiters only where cores are left for them: on two, they would take half of the main agents' time.
LEAGUE = """# Of `spar demo`: the leagues of Connect Four and Duel. Written at each start.
live_every_s = 10.0
[main]
source = "mix"  # with what you play
freeze_every_steps = 150_000
least_steps = 50_000
[main_exploiter]
count = {exploiters}
freeze_every_steps = 300_000
least_steps = 50_000
[train]
checkpoint_every_s = 10.0
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, metavar="N", help="instead of gateway.port; 0 picks a free one")
    parser.add_argument("--no-train", action="store_true", help="serve and record, but train nothing")
    parser.add_argument("--open", action="store_true", help="open the browser")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    data = Path(args.config.data)
    port = _bound(0) if args.port == 0 else args.port or args.config.gateway.port
    url = f"http://127.0.0.1:{port}"
    shared = _shared(args, data)
    restarts = partial(RestartPolicy, first_wait_s=1.0, longest_wait_s=60.0, young_s=60.0, loop_deaths=0)
    supervisor = Supervisor(data / "logs", output.say, restarts, STOP_S)
    with _only_one(data, url), stopping() as stopped, supervisor as children:
        _bound(port)
        serve = ["serve", "--host", "127.0.0.1", "--port", str(port), "--log", "warning", *shared]
        children.add("gateway", lambda _: spar_command(serve))
        if not _wait_until_ready(children, url, data / "logs" / "gateway.log", stopped):
            return {"url": url, "ready": False}
        output.say(f"Play at {url}    learning at {url}/learning    Ctrl-C stops it")
        output.say(f"Data in {data}, logs in {data / 'logs'}")
        if args.open:
            webbrowser.open(url)
        curriculum = None if args.no_train else _Curriculum(data, shared)
        _watch(children, stopped, curriculum, _Promotions(url, output))
        output.say("stopping…")
    output.say("stopped; start it again and it goes on from here")
    return {"url": url, "ready": True}


def _watch(
    children: Supervisor, stopped: threading.Event, curriculum: "_Curriculum | None", promotions: "_Promotions"
) -> None:
    begun = time.monotonic()
    while not stopped.wait(LOOP_S):
        now = time.monotonic()
        if curriculum is not None:
            for game in curriculum.due(now - begun):
                children.add(f"train-{game}", curriculum.launch(game))
        children.tick(now)
        promotions.look(now)


class _Curriculum:
    """What is trained when: CartPole until it is solved, then the leagues of the games with opponents, for ever."""

    def __init__(self, data: Path, shared: list[str]) -> None:
        self.runs, self.shared = data / "runs", shared
        self.league = data / "demo-league.toml"
        with disk_errors(self.league):
            exploiters = int((os.cpu_count() or 1) > 2)
            replace_file(self.league, LEAGUE.format(exploiters=exploiters).encode())

    def due(self, for_s: float) -> list[str]:
        """The games that should be learned now."""
        solved = _state(self._newest(FIRST)) == "done"
        return [FIRST, "connect-four", "duel"] if solved or for_s > CARTPOLE_FIRST_S else [FIRST]

    def launch(self, game: str) -> Callable[[int], Launch | None]:
        """A function that says how that game's training is started next; None: it is done."""

        def launch(failures: int) -> Launch | None:
            if game != FIRST:
                return spar_command(["league", game, "--file", str(self.league), *self.shared], NICE)
            newest = self._newest(game)
            if _state(newest) == "done":
                return None
            said = ["train", game, "--algo", "ppo", "--until", "475", *self.shared]
            said += ["--set", "train.publish_every_s=10", "--set", "train.checkpoint_every_s=10"]
            # A checkpoint that does not load after several tries stays as it is, and a new run begins.
            again = ["--resume", newest.name] if newest and failures < GIVE_UP_AFTER else []
            return spar_command([*said, *again], NICE)

        return launch

    def _newest(self, game: str) -> Path | None:
        """The newest run of the game that can be gone on with: not one that failed, or never kept anything."""
        found = []
        for path in self.runs.glob("*/run.json"):
            about, run = _object(path), path.parent
            mine = (about.get("game"), about.get("algo")) == (game, "ppo")
            if mine and (run / "checkpoint" / "state").exists() and _state(run) != "failed":
                found.append((about.get("started_at_ms", 0), run))
        return max(found)[1] if found else None


class _Promotions:
    """Says in the terminal who was promoted, as the pages do."""

    def __init__(self, url: str, output: Output) -> None:
        self.url, self.output = url, output
        self._next_s, self._seen = 0.0, -1

    def look(self, now_s: float) -> None:
        """Look again, if it is time."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + LOOK_EVERY_S
        found = _get(f"{self.url}/api/promotions")
        entries = list(reversed((found or {}).get("promotions", [])))
        if self._seen < 0 and found is not None:
            self._seen = max((one["at_ms"] for one in entries), default=0)
        for one in entries:
            if one["at_ms"] > self._seen:
                self._seen = one["at_ms"]
                self.output.say(f"{one['game']}: model {one['model'][:8]} is champion no. {one['counter']}")


def _wait_until_ready(children: Supervisor, url: str, log: Path, stopped: threading.Event) -> bool:
    """Start the gateway and wait until it answers; False where a signal came first."""
    children.tick(time.monotonic())
    until = time.monotonic() + READY_S
    while not stopped.is_set():
        if _get(f"{url}/healthz") is not None:
            return True
        if not children.alive("gateway") or time.monotonic() > until:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise Unreachable(f"the gateway did not start: {last}", where=url, do=f"See {log}")
        stopped.wait(0.05)
    return False


def _get(url: str) -> dict[str, Any] | None:
    """The JSON object at a loopback address, or None where nothing answers."""
    try:
        found: dict[str, Any] = httpx.get(url, timeout=0.5, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None
    return found


def _shared(args: argparse.Namespace, data: Path) -> list[str]:
    """The flags with which every child sees the same config."""
    words = ["--data", str(data)]
    if args.config_file is not None:
        words += ["--config", str(args.config_file)]
    return words + [word for text in args.set for word in ("--set", text)]


def _bound(port: int) -> int:
    """The port, if this machine's address can be bound to it; 0 gives a free one. ConfigError otherwise."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            do = "Give another with --port, or --port 0 for any"
            raise ConfigError(f"port {port} is taken", where="spar demo", do=do) from None
        bound: int = probe.getsockname()[1]
        return bound


@contextlib.contextmanager
def _only_one(data: Path, url: str) -> Iterator[None]:
    """Holds `demo.lock` in the data folder; ConfigError where another demo holds it."""
    data.mkdir(parents=True, exist_ok=True)
    path = data / "demo.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held, do = _object(path), "Open that address, or give this one another folder with --data"
            wrong = f"a demo runs there already, process {held.get('pid')}, at {held.get('url')}"
            raise ConfigError(wrong, where=str(data), do=do) from None
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps({"pid": os.getpid(), "url": url}).encode())
        yield
    finally:
        os.close(fd)


def _state(run: Path | None) -> str:
    return "" if run is None else str(_object(run / "status.json").get("state", ""))


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found
