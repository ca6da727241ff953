"""Agent steps per second while learning Pong from pixels, beside CleanRL's PPO on envpool and Sample Factory's APPO.

    spar bench steps-pong [--quick]

All learn 4 epochs of each 1024 steps in minibatches of 256 with the network of Mnih et al. 2015, on two threads, each
in a process of its own and in turns, so that all meet the same machine. An agent step is four frames. What a peer
needs before its first updates (compiling, filling) is not counted, and neither is ours. A run is shorter than a game
of Pong, so what a reset costs is left out. The goal is PPO's, which plays and learns in turns; IMPALA with PPO's
clipping and an actor process that plays meanwhile is measured beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from bench import ledger
from bench.peers.environments import python_of

GAME, THREADS = "atari:Pong", 2
PEERS = {
    "CleanRL's PPO on envpool 1.2.5": ("envpool", "pong_cleanrl_envpool.py"),
    "Sample Factory 2.1.1 APPO": ("sample-factory", "pong_sample_factory.py"),
}
APPO = ("rollout_ticks=64", "epochs=4", "minibatch_steps=256", "clip=0.1")
OURS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "ppo": ("ppo", "single", ()),
    "appo": ("impala", "async", APPO),
}
WARM_UPDATES = 2
GOAL = 2.0
PATIENCE_S = 900


def learn(algorithm: str, topology: str, updates: int, settings: tuple[str, ...]) -> dict[str, float]:
    """Steps learned from and the seconds they took, after the first updates. In this process."""
    import torch

    from sparring.config import Config
    from sparring.learn.plan import TrainRequest, plan
    from sparring.learn.topologies import build

    torch.set_num_threads(THREADS)
    topology = build(
        plan(TrainRequest(GAME, algorithm, topology=topology, actors=1, settings=settings), Config()), None
    )
    steps, begun, last = 0, 0.0, 0.0
    try:
        while topology.learner.updates < WARM_UPDATES + updates:
            turn = topology.iterate()
            if turn.update is None or turn.batch is None:
                continue
            last = time.perf_counter()
            if topology.learner.updates <= WARM_UPDATES:
                begun = last
            else:
                steps += turn.batch.reward.size
        return {"steps": steps, "seconds": last - begun}
    finally:
        topology.close()


def rate(python: str, words: list[str]) -> float:
    """Steps per second that a process says as its last line."""
    told = said_by(python, words)
    return told["steps"] / told["seconds"]


def said_by(python: str, words: list[str]) -> dict[str, float]:
    """The JSON that a process says as its last line."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    said = subprocess.run(
        [python, *words],
        env=environment | {"PYTHONPATH": str(ledger.ROOT)},
        cwd=ledger.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    told: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return told


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    rounds, updates = (1, 2) if args.quick else (5, 5)
    rates: dict[str, list[float]] = {who: [] for who in (*OURS, *PEERS)}
    for _ in range(rounds):
        for name, (algorithm, topology, settings) in OURS.items():
            words = ["-m", "bench.steps_pong", algorithm, topology, str(updates), *settings]
            rates[name].append(rate(sys.executable, words))
        for name, (peer, script) in PEERS.items():
            path = str(ledger.ROOT / "bench" / "peers" / script)
            rates[name].append(rate(str(python_of(peer)), [path, str(updates), str(THREADS)]))
    medians = {who: round(statistics.median(found)) for who, found in rates.items()}
    better = max(PEERS, key=lambda peer: medians[peer])
    spreads = {who: (round(min(found)), round(max(found))) for who, found in rates.items()}
    peers = {peer: medians[peer] for peer in PEERS}
    cases = [
        ledger.case(
            "PPO, 1024 steps an update, 4 epochs of 256",
            medians["ppo"],
            "steps/s",
            peers=peers,
            goals={better: GOAL},
            spread=spreads["ppo"],
            spreads=spreads,
        ),
        ledger.case(
            "IMPALA as APPO (the same epochs and batch), one actor process",
            medians["appo"],
            "steps/s",
            peers=peers,
            spread=spreads["appo"],
        ),
    ]
    return ledger.result("steps_pong", cases, rounds=rounds, threads=THREADS)


if __name__ == "__main__":
    print(json.dumps(learn(sys.argv[1], sys.argv[2], int(sys.argv[3]), tuple(sys.argv[4:]))))
