"""Durable steps per second over loopback HTTP from 8 client processes, and how long an ok takes.

Ours: `spar serve`, one chunk of 512 steps a request, every check, the embedded store. Beside it in the same
run: FastAPI + JSON (100 steps a request) + one row per step in SQLite, under uvicorn. Both commit with
synchronous=FULL before they answer; both sides' bodies are encoded before the clock starts. The rate
limit per address is lifted, since one address plays eight.

`through_client` is the whole way: record() in eight games, spooled, sent, and on disk when flush() returns.
"""

import argparse
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from bench.flood import Flood, flood, request
from bench.ledger import ROOT, case, result

import sparring
from sparring.games.spec import parse
from sparring.store import open_store
from sparring.wire.chunk import Chunk, Header, encode, encode_parts, pack
from sparring.wire.ids import GameId, new_episode

CLIENTS, CHUNK_STEPS, JSON_STEPS, BODIES = 8, 512, 100, 32
BATCH = 8  # chunks in one request, in the case that says so
PEER = "fastapi+json+sqlite"
SPEC = """
id = "bench-cart"
turns = "simultaneous"
max_ticks = 1_000_000

[[seats]]
name = "cart"
reward_bounds = [0.0, 1.0]
observation = [{ name = "observation/state", kind = "vector", shape = [4] }]
action = { name = "action", kind = "discrete", dtype = "int32", choices = [2] }
"""


def columns(rng: np.random.Generator, steps: int) -> dict[str, Any]:
    """Numbers as a cart makes them: a walk in float32."""
    return {
        "observation/state": np.cumsum(rng.normal(0, 0.02, (steps, 4)), axis=0).astype(np.float32),
        "action": rng.integers(0, 2, steps, np.int32),
        "reward": np.ones(steps, np.float32),
        "tick": np.arange(steps, dtype=np.int64),
    }


def batch_requests(client: int, count: int) -> list[bytes]:
    """Uploads of BATCH chunks each."""
    return chunk_requests(client, count, BATCH)


def chunk_requests(client: int, count: int, chunks: int = 1) -> list[bytes]:
    """Uploads of one chunk each, by default; every chunk is an episode of its own."""
    rng, spec = np.random.default_rng(client), parse(SPEC)
    ready = []
    for _ in range(BODIES):
        head = Header(
            game=GameId(spec.id), version=spec.version, spec=spec.hash, episode=new_episode(), seat=0, first_step=0,
            steps=CHUNK_STEPS, actor="person", source="play",
        )  # fmt: skip
        chunk = Chunk(head, columns(rng, CHUNK_STEPS))
        packed, body = encode_parts(chunk)
        ready.append(Chunk(msgspec.msgpack.decode(packed, type=Header), chunk.columns, body))
    path, kind = f"/v1/games/{spec.id}/chunks", "application/x-spar-chunks"
    sent = []
    for n in range(count):
        encoded = []
        for at in range(chunks):
            chunk = ready[(n * chunks + at) % BODIES]
            header = msgspec.structs.replace(chunk.header, episode=new_episode())
            encoded.append(encode(Chunk(header, chunk.columns, chunk.body)))
        sent.append(request(path, kind, pack(encoded)))
    return sent


def json_requests(client: int, count: int) -> list[bytes]:
    """The peer's uploads of 100 steps each."""
    rng, ready = np.random.default_rng(client), []
    for _ in range(BODIES):
        made = columns(rng, JSON_STEPS)
        rows = zip(made["observation/state"].tolist(), made["action"].tolist(), made["tick"].tolist(), strict=True)
        steps = [{"state": state, "action": action, "reward": 1.0, "tick": tick} for state, action, tick in rows]
        ready.append(json.dumps({"episode": "EPISODE", "first_step": 0, "steps": steps}).encode())
    return [
        request("/steps", "application/json", ready[n % BODIES].replace(b"EPISODE", new_episode().encode()))
        for n in range(count)
    ]


@contextmanager
def our_server(folder: Path) -> Iterator[int]:
    """`spar serve` on a fresh data folder; its port."""
    (folder / "cart.toml").write_text(SPEC)
    (folder / "spar.toml").write_text('data = "data"\ngames = ["cart.toml"]\n')
    lifted = ("gateway.requests_per_s=1e9", "gateway.burst_requests=1000000000")
    command = [
        sys.executable,
        "-m",
        "sparring",
        "serve",
        "--config",
        str(folder / "spar.toml"),
        "--port",
        "0",
        "--json",
    ]
    command += ["--log", "warning", *(word for one in lifted for word in ("--set", one))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        yield int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
    finally:
        process.terminate()
        process.wait()


@contextmanager
def peer_server(folder: Path) -> Iterator[int]:
    """The peer on a fresh file; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "bench.peers.fastapi_sqlite", str(folder), str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def play(url: str, folder: str, at: int, seconds: float, results: Any) -> None:
    """A game that records as fast as record() returns; what the gateway had acknowledged at the end."""
    spec, rng = parse(SPEC), np.random.default_rng(at)
    made = columns(rng, CHUNK_STEPS)
    states, actions = made["observation/state"], made["action"].tolist()
    with sparring.connect(url, spec.id, player=f"player {at}", spec=spec, folder=f"{folder}/{at}") as game:
        begun, recorded = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            with game.episode() as episode:
                for step in range(CHUNK_STEPS):
                    episode.record(states[step], actions[step], 1.0, tick=step)
                episode.end(states[-1])
            recorded += CHUNK_STEPS
        game.flush(60.0)
    results.put((begun, time.monotonic(), recorded))


def through_client(seconds: float) -> tuple[float, int]:
    """Steps per second from record() in CLIENTS games to the disk, the last flush included; and how many are stored."""
    with tempfile.TemporaryDirectory() as folder, our_server(Path(folder)) as port:
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        url = f"http://127.0.0.1:{port}"
        games = [context.Process(target=play, args=(url, folder, at, seconds, results)) for at in range(CLIENTS)]
        for game in games:
            game.start()
        found = [results.get() for _ in games]
        for game in games:
            game.join()
        with open_store(f"sqlite:///{folder}/data/experience.db", check=False) as store:
            kept = store.stats(GameId(parse(SPEC).id)).steps
    return kept / (max(one[1] for one in found) - min(one[0] for one in found)), kept - sum(one[2] for one in found)


def measure(seconds: float, requests: int) -> tuple[Flood, Flood, Flood]:
    """One round: ours with one chunk a request, the peer, ours with BATCH chunks a request."""
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        with our_server(Path(ours)) as port:
            mine = flood(port, chunk_requests, clients=CLIENTS, seconds=seconds, requests=requests)
        with peer_server(Path(theirs)) as port:
            other = flood(port, json_requests, clients=CLIENTS, seconds=seconds, requests=requests)
    with tempfile.TemporaryDirectory() as ours, our_server(Path(ours)) as port:
        batched = flood(port, batch_requests, clients=CLIENTS, seconds=seconds, requests=requests // BATCH + 1)
    return mine, other, batched


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds that take turns; medians, with the smallest and largest beside them."""
    rounds = [measure(2.0, 1_200) if args.quick else measure(10.0, 6_000) for _ in range(1 if args.quick else 5)]
    mine, other, batched = ([one[at] for one in rounds] for at in range(3))
    ours = [one.answers * CHUNK_STEPS / one.seconds for one in mine]
    theirs = [one.answers * JSON_STEPS / one.seconds for one in other]
    eights = [one.answers * BATCH * CHUNK_STEPS / one.seconds for one in batched]
    client, unaccounted = through_client(2.0 if args.quick else 10.0)
    cases = [
        case(
            "durable steps per second",
            median(ours),
            "steps/s",
            peers={PEER: median(theirs)},
            goals={PEER: 10.0},
            spread=(min(ours), max(ours)),
            requests_per_s=median(one.answers / one.seconds for one in mine),
            chunks_per_request=1,
            clients=CLIENTS,
        ),
        case(
            "p99 of an ok",
            median(one.p99_ms for one in mine),
            "ms",
            peers={PEER: median(one.p99_ms for one in other)},
            limit=100.0,
            goals={"limit": 1.0},
            less_is_better=True,
            spread=(min(one.p99_ms for one in mine), max(one.p99_ms for one in mine)),
            p50_ms=median(one.p50_ms for one in mine),
        ),
        case(
            f"durable steps per second, {BATCH} chunks a request",
            median(eights),
            "steps/s",
            peers={PEER: median(theirs)},
            spread=(min(eights), max(eights)),
            p99_ms=median(one.p99_ms for one in batched),
            chunks_per_request=BATCH,
        ),
        case(
            "through_client",
            client,
            "steps/s",
            peers={PEER: median(theirs)},
            stored_minus_recorded_steps=unaccounted,
            clients=CLIENTS,
        ),
    ]
    return result("ingest", cases)
