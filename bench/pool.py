"""How long 8 processes take to read a 1 MB model from a league's pool: p50 and p99 of `Pool.get`.

    spar bench pool [--quick]

The pool holds 16 models of 1 MB; each reader is a process of its own and draws one at random. Three ways to read:

    first read        the reader keeps nothing (cache_bytes=0), so that each read is a call, a copy and a checksum; 20
                      reads a second by each reader, 160 MB/s in all: many more than there are matches that begin
    first read, flood the same without a pause: 8 readers want more than the cores have, and wait for each other
    again             with the default cache, after a model was read once: what a league does nearly always

The limit is a bare GET of a value of the same size by redis-py, which verifies and decodes nothing, at the same pace.
Needs `make servers S=redis`. Memory, Redis and the limit take turns; a figure is the median of the rounds (5 of 4 s,
quick 1 of 2 s), its spread the least and the most of them. Beside p99 stands p50.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # which know how the servers are started

import redis as redis_py
from bench import ledger

from servers.running import redis
from sparring.hosts.protocol import open_host
from sparring.pool import open_pool
from sparring.pool.memory import serve_pool
from sparring.services.discovery import open_discovery
from sparring.services.solver import Solver
from sparring.wire.ids import GameId
from sparring.wire.model import WEIGHTS, Card, Lineage, Model
from sparring.wire.network import Dense, Head, Input, NetworkSpec

READERS, MODELS, MODEL_BYTES = 8, 16, 1_000_000
GOAL = {"goal of the design": 5.0}  # ms
EVERY_S = {"first read": 0.05, "first read, flood": 0.0, "again": 0.0}
BARE = "bare GET"


def made_model(number: int) -> Model:
    """A model of 1 MB; what its weights mean is no matter here."""
    weights = random.Random(number).randbytes(MODEL_BYTES)
    network = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2), Head("value", 1)), (Dense(8),))
    lineage = Lineage(algorithm="ppo", config={}, steps={"selfplay": number})
    card = Card(
        game=GameId("cartpole"),
        version="1",
        spec="5" * 64,
        network=network,
        policy="categorical",
        lineage=lineage,
        created_at_ms=1_700_000_000_000,
        files={WEIGHTS: hashlib.sha256(weights).hexdigest()},
    )
    return Model(card, {WEIGHTS: weights})


class Readers:
    """Eight processes that read from one place, and wait for their turns."""

    def __init__(self, url: str, environment: dict[str, str], ids: list[str]) -> None:
        script = ledger.ROOT / "bench" / "peers" / "pool_reader.py"
        words, pipe, places = [sys.executable, str(script), url], subprocess.PIPE, os.environ | environment
        self._started = [
            subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=places) for _ in range(READERS)
        ]
        self._tell(ids)
        assert self._answers() == ["ready\n"] * READERS

    def turn(self, way: str, seconds: float, every_s: float) -> dict[str, float]:
        """p50 and p99 of all together, in ms, and reads per second."""
        self._tell((way, seconds, every_s))
        taken = sorted(ms for one in self._answers() for ms in json.loads(one))
        last = len(taken)
        return {"p50": taken[last // 2], "p99": taken[last * 99 // 100], "reads_per_s": last / seconds}

    def close(self) -> None:
        for one in self._started:
            one.communicate()

    def _tell(self, what: Any) -> None:
        for one in self._started:
            assert one.stdin is not None
            one.stdin.write(json.dumps(what) + "\n")
            one.stdin.flush()

    def _answers(self) -> list[str]:
        return [one.stdout.readline() for one in self._started if one.stdout is not None]


@contextmanager
def pools(folder: Path) -> Iterator[tuple[dict[str, tuple[str, dict[str, str]]], list[str]]]:
    """Both pools filled, and a Redis database of bare values: who → URL and environment; and the ids."""
    models = [made_model(number) for number in range(MODELS)]
    with redis(folder) as server, open_host("local://") as host, Solver(open_discovery(host.discovery)) as solver:
        serve_pool(host, "memory://")
        with open_pool("memory://", solver=solver) as memory, open_pool(f"{server.ready}/0") as shared:
            for model in models:
                memory.put(model)
                shared.put(model)
        parts = urlsplit(server.ready)
        with redis_py.Redis(parts.hostname or "", parts.port or 0, protocol=2) as raw:
            for model in models:
                raw.set(model.id, model.files[WEIGHTS])
        found = {"SPARRING_DISCOVERY": host.discovery}
        yield (
            {"memory://": ("memory://", found), "redis://": (f"{server.ready}/0", {}), BARE: (server.ready, {})},
            [model.id for model in models],
        )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    rounds, seconds = (1, 2.0) if args.quick else (5, 4.0)
    said: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, pools(Path(folder)) as (places, ids), ExitStack() as opened:
        readers = {who: opened.enter_context(closing(Readers(*place, ids))) for who, place in places.items()}
        for _ in range(rounds):
            for way, every_s in EVERY_S.items():
                for who in places:
                    if who != BARE or way != "again":
                        said.setdefault((who, way), []).append(readers[who].turn(way, seconds, every_s))
    return ledger.result("pool", [case(who, way, said) for way in EVERY_S for who in places if who != BARE])


def case(who: str, way: str, said: dict[tuple[str, str], list[dict[str, float]]]) -> dict[str, Any]:
    turns, bare = said[who, way], said.get((BARE, way))
    flood = way.endswith("flood")
    return ledger.case(
        f"{who}, {way}, p99",
        median(turns, "p99"),
        "ms",
        peers={} if flood else GOAL,
        limit=median(bare, "p99") if bare else None,
        goals={} if flood else dict.fromkeys(GOAL, 1.0),
        less_is_better=True,
        spread=(round(min(one["p99"] for one in turns), 4), round(max(one["p99"] for one in turns), 4)),
        p50_ms=median(turns, "p50"),
        limit_p50_ms=median(bare, "p50") if bare else None,
        reads_per_s=median(turns, "reads_per_s"),
    )


def median(turns: list[dict[str, float]], what: str) -> float:
    return round(statistics.median(one[what] for one in turns), 4)


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
