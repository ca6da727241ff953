"""Prioritised replay in one process: add 32, sample 256, update 256 in a table of a million steps of CartPole's size.

    spar bench replay [--quick]

Beside cpprb and TorchRL, each in its own environment (bench/peers/environments.py), in turns with ours so that all
meet the same machine. A figure is the median loop. Our loop starts with 32 streams, walks links and makes
transitions; theirs are given both observations. Figures across processes, beside Reverb, are not measured here.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
from bench import ledger
from bench.peers.environments import python_of

from sparring.games import cartpole
from sparring.replay.sampler import Prioritised
from sparring.replay.steps import Steps
from sparring.replay.table import Table

ROWS, ADD, BATCH = 1_000_000, 32, 256
PEERS = {"cpprb": "cpprb 11.0.0", "torchrl": "TorchRL 0.14.1"}
GOALS = {"cpprb 11.0.0": 5.0, "TorchRL 0.14.1": 15.0}
PAUSE_S = 0.001  # between two inserts of the other thread: 32,000 steps/s


def full_table(rows: int, rng: np.random.Generator) -> Table:
    seat = cartpole.SPEC.seats[0]
    table = Table(seat, rows, streams=ADD, masks=False, sampler=Prioritised(rows, 0.6, 0.4))
    for _ in range(rows // 10_000 + 1):
        table.insert(steps(10_000, np.zeros(10_000, np.int64), rng))
    return table


def steps(count: int, stream: np.ndarray, rng: np.random.Generator) -> Steps:
    return Steps(
        stream=stream,
        observation={"observation/state": rng.random((count, 4), np.float32)},
        action=np.zeros(count, np.int32),
        reward=np.zeros(count, np.float32),
        ending=np.zeros(count, np.uint8),
        legal=None,
        behaviour_logp=None,
        value=None,
        final=np.zeros(0, np.int64),
        final_observation={},
    )


def ours(table: Table, loops: int, rng: np.random.Generator) -> list[float]:
    added, errors, took = steps(ADD, np.arange(ADD), rng), rng.random((loops, BATCH), np.float32), []
    for turn in range(loops):
        begun = time.perf_counter()
        table.insert(added)
        _, rows = table.sample(BATCH, rng, n_steps=1, discount=0.99)
        table.learned(rows, errors[turn])
        took.append(time.perf_counter() - begun)
    return took


def theirs(peer: str, loops: int) -> list[float]:
    script = ledger.ROOT / "bench" / "peers" / f"replay_{peer}.py"
    command = [str(python_of(peer)), str(script), str(ROWS), str(loops)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    took: list[float] = json.loads(said.stdout.splitlines()[-1])
    return took


def under_inserts(table: Table, samples: int, rng: np.random.Generator) -> list[float]:
    """Seconds that each sample takes while a thread inserts."""
    stop, added = threading.Event(), steps(ADD, np.arange(ADD), rng)

    def insert() -> None:
        while not stop.wait(PAUSE_S):
            table.insert(added)

    thread = threading.Thread(target=insert)
    thread.start()
    took = []
    try:
        for _ in range(samples):
            begun = time.perf_counter()
            table.sample(BATCH, rng, n_steps=1, discount=0.99)
            took.append(time.perf_counter() - begun)
    finally:
        stop.set()
        thread.join()
    return took


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    rounds, loops = (2, 300) if args.quick else (5, 2_000)
    rng = np.random.default_rng(0)
    table = full_table(ROWS, rng)
    ours(table, 200, rng)  # compiles
    rates: dict[str, list[float]] = {who: [] for who in ("ours", *PEERS)}
    tails = []
    for _ in range(rounds):
        rates["ours"].append(1.0 / statistics.median(ours(table, loops, rng)))
        for peer in PEERS:
            rates[peer].append(1.0 / statistics.median(theirs(peer, loops)))
        tails.append(np.quantile(under_inserts(table, loops, rng), [0.5, 0.99]).tolist())
    medians = {who: statistics.median(found) for who, found in rates.items()}
    spread = (round(min(rates["ours"])), round(max(rates["ours"])))
    peers = {PEERS[peer]: round(medians[peer]) for peer in PEERS}
    p50, p99 = (statistics.median(column) for column in zip(*tails, strict=True))
    cases = [
        ledger.case(
            "add 32, sample 256, update 256",
            round(medians["ours"]),
            "loops/s",
            peers=peers,
            goals=GOALS,
            seeds=[0],
            spread=spread,
        ),
        ledger.case(
            "p99 of a sample of 256 while a thread inserts",
            round(p99 * 1e6, 1),
            "µs",
            limit=round(p50 * 1e6, 1),  # its p50
            goals={"limit": 0.5},
            less_is_better=True,
            seeds=[0],
            spread=(round(min(tail[1] for tail in tails) * 1e6, 1), round(max(tail[1] for tail in tails) * 1e6, 1)),
        ),
    ]
    return ledger.result("replay", cases, rows=ROWS)


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
