"""How long a well-behaved player waits for an ok while somebody attacks the gateway, and what the attack costs it.

A real `spar serve` with a key. A player uploads chunks of 512 CartPole steps (20 a second) and asks for actions (20 a
second), each over one connection and one after the other; where answers take longer, fewer are sent. Beside that runs
one attack at a time, of a single stranger or with a single player's token (bench/attackers.py), in one process of one
thread. Client, attacker and gateway share this machine's cores. It passes where no request fails and the gateway's
resident memory grows by at most 256 MiB; the slowest comes first.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from bench.attackers import ATTACKS, CHUNKS, Target, header, renamed
from bench.ingest import columns
from bench.ledger import case, result

from sparring.games.spec import parse
from sparring.gateway.credentials import ApiKeys
from sparring.registry.file import Folder
from sparring.wire.chunk import Chunk, encode, pack

PER_S = 20.0  # uploads, and as many actions
MAY_GROW_BYTES = 256 << 20
NOTHING, NOTHING_TLS = "no attack", "no attack, TLS"
OVER_TLS = ("5,000 TLS handshakes left silent", NOTHING_TLS)
CART = """
id = "carts"
turns = "simultaneous"
max_ticks = 1_000_000

[[seats]]
name = "cart"
reward_bounds = [0.0, 1.0]
observation = [{ name = "observation/state", kind = "vector", shape = [4] }]
action = { name = "action", kind = "discrete", dtype = "int32", choices = [2] }
"""
IMAGES = """
id = "images"
turns = "simultaneous"
max_ticks = 1000

[[seats]]
name = "eye"
reward_bounds = [0.0, 1.0]
observation = [{ name = "observation/image", kind = "image", dtype = "uint8", shape = [3, 200, 210] }]
action = { name = "action", kind = "discrete", dtype = "int32", choices = [2] }
"""


@dataclass(frozen=True)
class Gateway:
    """A gateway that runs, and the admin key."""

    process: psutil.Process
    port: int
    key: str
    tls: ssl.SSLContext | None

    def connection(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.tls)

    def token(self, game: str, player: str) -> str:
        made = self.connection()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        made.request("POST", f"/v1/games/{game}/tokens", json.dumps({"player": player}), headers)
        return str(json.loads(made.getresponse().read())["token"])


@contextmanager
def gateway(folder: Path, *, tls: bool) -> Iterator[Gateway]:
    """`spar serve` with its own settings on a fresh data folder."""
    (folder / "carts.toml").write_text(CART)
    (folder / "images.toml").write_text(IMAGES)
    (folder / "spar.toml").write_text('data = "data"\ngames = ["carts.toml", "images.toml"]\n')
    _, key = ApiKeys(Folder(folder / "data", 0o600)).create("studio", ("admin",), int(time.time() * 1000))
    words = ["serve", "--config", str(folder / "spar.toml"), "--port", "0", "--json", "--log", "warning"]
    command = [sys.executable, "-m", "sparring", *words, *(["--tls", "self-signed"] if tls else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
        context = ssl.create_default_context(cafile=str(folder / "data/tls-cert.pem")) if tls else None
        yield Gateway(psutil.Process(process.pid), port, key, context)
    finally:
        process.terminate()
        process.wait()


class Player(threading.Thread):
    """Sends one kind of request at a steady rate until it is stopped: milliseconds of each ok, and what failed."""

    def __init__(self, to: Gateway, token: str, verb: str, kind: str, body: Any) -> None:
        super().__init__()
        self._to, self._path, self._body = to, f"/v1/games/carts/{verb}", body
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        self.over = threading.Event()
        self.taken_ms: list[float] = []
        self.failed: list[str] = []

    def run(self) -> None:
        connection, due_s = self._to.connection(), time.monotonic()
        while not self.over.wait(max(0.0, due_s - time.monotonic())):
            sent_s = time.monotonic()
            try:
                connection.request("POST", self._path, self._body(), self._headers)
                answer = connection.getresponse()
                said = answer.read()
                if answer.status == 200:
                    self.taken_ms.append((time.monotonic() - sent_s) * 1e3)
                else:
                    self.failed.append(f"{answer.status} {said[:200]!r}")
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
                connection.close()
                connection = self._to.connection()
            due_s = max(due_s + 1 / PER_S, sent_s)


def percentile(taken_ms: list[float], share: float) -> float:
    return sorted(taken_ms)[min(len(taken_ms) - 1, int(len(taken_ms) * share))] if taken_ms else float("nan")


def attack(target: Target, name: str, over: Any, cpu_s: Any) -> None:
    """The attacker's process."""
    for _ in ATTACKS[name](target):
        cpu_s.value = time.process_time()
        if over.is_set():
            return


def measure(name: str, seconds: float) -> dict[str, Any]:
    """One attack: what the player beside it saw, and what it cost."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder), tls=name in OVER_TLS) as server:
        cart, images = parse(CART), parse(IMAGES)
        target = Target(server.port, server.token("carts", "mallory"), server.token("images", "mallory"), cart, images)
        body = encode(Chunk(header(cart, 512), columns(np.random.default_rng(1), 512)))
        if "exports" in name:
            store(server, target.token, body)
        alice = server.token("carts", "alice")
        view = json.dumps({"observation": {"state": [0.0] * 4}})
        uploads = Player(server, alice, "chunks", CHUNKS, lambda: pack([renamed(body)]))
        acts = Player(server, alice, "act", "application/json", lambda: view)
        uploads.start()
        acts.start()
        time.sleep(min(2.0, seconds))  # the first of everything
        over, cpu_s = context.Event(), context.Value("d", 0.0)
        attacker = context.Process(target=attack, args=(target, name, over, cpu_s), daemon=True)
        if name in ATTACKS:
            attacker.start()
            deadline_s = time.monotonic() + 60
            while not cpu_s.value and time.monotonic() < deadline_s:
                time.sleep(0.05)
        grown = watch(server.process, (uploads, acts), seconds)
        used_s = cpu_s.value
        over.set()
        for player in (uploads, acts):
            player.over.set()
            player.join()
        if name in ATTACKS:
            attacker.join(5)
            attacker.kill()
    return figures(name, (uploads, acts), grown, used_s / seconds)


def store(server: Gateway, token: str, body: bytes) -> None:
    """A player's past: 200 chunks."""
    connection = server.connection()
    for _ in range(10):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": CHUNKS}
        connection.request("POST", "/v1/games/carts/chunks", pack([renamed(body) for _ in range(20)]), headers)
        assert connection.getresponse().read()


def watch(process: psutil.Process, players: tuple[Player, ...], seconds: float) -> int:
    """For how many bytes the resident memory is above what it was at the beginning, at most; what the players measured
    before is forgotten."""
    before = highest = process.memory_info().rss
    for player in players:
        player.taken_ms.clear()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        highest = max(highest, process.memory_info().rss)
        time.sleep(0.01)
    return highest - before


def figures(name: str, players: tuple[Player, Player], grown: int, attacker_cores: float) -> dict[str, Any]:
    uploads, acts = players
    failed = [*uploads.failed, *acts.failed]
    return {
        "p99_ms": percentile(uploads.taken_ms, 0.99),
        "p50_ms": percentile(uploads.taken_ms, 0.5),
        "act_p50_ms": percentile(acts.taken_ms, 0.5),
        "act_p99_ms": percentile(acts.taken_ms, 0.99),
        "sent": len(uploads.taken_ms) + len(acts.taken_ms) + len(failed),
        "failed": len(failed),
        "failures": failed[:3],
        "grown_mib": grown / (1 << 20),
        "attacker_cores": attacker_cores,
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Each attack for 15 s beside a well-behaved player, and no attack, over HTTP and over TLS."""
    seconds, cases, before = 3.0 if args.quick else 15.0, [], os.getloadavg()[0]
    found = {name: measure(name, seconds) for name in (NOTHING, NOTHING_TLS, *ATTACKS)}
    for name, one in found.items():
        quiet = found[NOTHING_TLS if name in OVER_TLS else NOTHING]
        made = case(
            name,
            one["p99_ms"],
            "ms, p99 of an ok",
            peers={"no attack": quiet["p99_ms"]},
            less_is_better=True,
            **{key: value for key, value in one.items() if key != "p99_ms"},
        )
        made["passed"] = not one["failed"] and one["grown_mib"] * (1 << 20) <= MAY_GROW_BYTES
        cases.append(made)
    cases.sort(key=lambda one: -float(one["ours"]))
    return result("attack", cases, seconds=seconds, load_1min_before=before)
