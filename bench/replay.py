"""A prioritised table of a million steps of CartPole's size, in one process and fed by another.

    spar bench replay [--quick]

One process: loops of add 32, sample 256, update 256, beside cpprb and TorchRL. Our loop begins with 32 streams, walks
links and makes transitions; theirs are given both observations.
Two processes: another one hands over blocks of 16 ticks of 8 games, by the path that training uses (step blocks through
the shared-memory ring buffer into the table); a step counts when it is in the table. Beside Reverb, whose server and
client are two processes: it is given trajectories of 100. Items are sampled where each learner would: ours in the
table's process, while the other inserts; Reverb's in the client's.
The tail (bench/tail.py): p99 beside p50 of what a learner's samples take, between updates of dqn, while a thread of the
same process inserts, and while another process does: 32,000 steps/s in both. As a peer of it the p99 of a loop that
lasts as long and does nothing, in turns with the samples: what the machine itself adds. Samples back to back, which no
learner draws, have the same goal.

Peers run in their own environments (`make bench-peers`), in turns with ours so that all meet the same machine.
A figure is the median of the rounds (5, quick 2), its spread the least and the most of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from bench import ledger
from bench.feeding import ADD, BATCH, ROWS, Writer, full_table, steps
from bench.peers.environments import python_of
from bench.tail import INSERTING, Sampling

from sparring.replay.table import Table

PEERS = {"cpprb": "cpprb 11.0.0", "torchrl": "TorchRL 0.14.1"}
GOALS = {"cpprb 11.0.0": 5.0, "TorchRL 0.14.1": 15.0}
REVERB = "Reverb 0.14.0"
CROSSING = {  # what is counted across processes, by the name that bench/peers/replay_reverb.py gives it
    "trajectory_steps": ("steps handed over in blocks of 16 ticks of 8 games", "steps/s"),
    "samples": ("items sampled while another process inserts", "items/s"),
}
NOTHING = "a loop that does nothing"


def ours(table: Table, loops: int, rng: np.random.Generator) -> list[float]:
    added, errors, took = steps(ADD, np.arange(ADD), rng), rng.random((loops, BATCH), np.float32), []
    for turn in range(loops):
        begun = time.perf_counter()
        table.insert(added)
        _, rows = table.sample(BATCH, rng, n_steps=1, discount=0.99)
        table.update_priorities(rows, errors[turn])
        took.append(time.perf_counter() - begun)
    return took


def theirs(peer: str, loops: int) -> list[float]:
    script = ledger.ROOT / "bench" / "peers" / f"replay_{peer}.py"
    command = [str(python_of(peer)), str(script), str(ROWS), str(loops)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    took: list[float] = json.loads(said.stdout.splitlines()[-1])
    return took


def crossing(table: Table, how: str, count: int) -> float:
    """Steps/s from the other process into the table."""
    with Writer(how, count) as writer:
        begun, taken = time.perf_counter(), 0
        while taken < count:
            taken += (fresh := writer.drain(table))
            if not fresh:
                time.sleep(0.0002)  # leave the core to the writer
        return taken / (time.perf_counter() - begun)


def beside_a_process(table: Table, samples: int, rng: np.random.Generator) -> float:
    """Items sampled per second, draining included, while another process inserts."""
    with Writer("paced", 0) as writer:
        begun = time.perf_counter()
        for _ in range(samples):
            writer.drain(table)
            table.sample(BATCH, rng, n_steps=1, discount=0.99)
        return samples * BATCH / (time.perf_counter() - begun)


def reverb() -> dict[str, float]:
    """One round of Reverb."""
    command = [str(python_of("reverb")), str(ledger.ROOT / "bench" / "peers" / "replay_reverb.py"), str(ROWS), "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name: found[0] for name, found in json.loads(said.stdout.splitlines()[-1]).items()}


class Rounds:
    """What each round found, by who and what."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[float]] = {}

    def add(self, who: str, what: str, value: float) -> None:
        self._found.setdefault((who, what), []).append(value)

    def median(self, who: str, what: str) -> float:
        return round(statistics.median(self._found[who, what]), 1)

    def spread(self, what: str) -> tuple[float, float]:
        found = self._found["ours", what]
        return round(min(found), 1), round(max(found), 1)


def one_round(table: Table, sampling: Sampling, loops: int, rng: np.random.Generator, rounds: Rounds) -> None:
    """Ours and every peer once, one after the other."""
    rounds.add("ours", "loop", 1.0 / statistics.median(ours(table, loops, rng)))
    for peer, name in PEERS.items():
        rounds.add(name, "loop", 1.0 / statistics.median(theirs(peer, loops)))
    rounds.add("ours", "trajectory_steps", crossing(table, "blocks", 512 * loops))
    rounds.add("ours", "samples", beside_a_process(table, loops, rng))
    for name, value in reverb().items():
        rounds.add(REVERB, name, value)
    for who in INSERTING:
        found = sampling.tail(loops, who)
        rounds.add("ours", f"{who} inserted", found.inserted_per_s)
        for what in ("sample", "idle", "back_to_back"):
            for part, value in zip(("p50", "p99"), np.quantile(getattr(found, what), [0.5, 0.99]), strict=True):
                rounds.add("ours", f"{who} {what} {part}", float(value * 1e6))


def cases(rounds: Rounds) -> list[dict[str, Any]]:
    """The claims."""
    made = [
        ledger.case(
            "add 32, sample 256, update 256",
            rounds.median("ours", "loop"),
            "loops/s",
            peers={name: rounds.median(name, "loop") for name in GOALS},
            goals=GOALS,
            seeds=[0],
            spread=rounds.spread("loop"),
        )
    ]
    for what, (name, unit) in CROSSING.items():
        peers, spread = {REVERB: rounds.median(REVERB, what)}, rounds.spread(what)
        figure = rounds.median("ours", what)
        made.append(ledger.case(name, figure, unit, peers=peers, goals={REVERB: 10.0}, seeds=[0], spread=spread))
    for who in INSERTING:
        made += tails(rounds, who)
    return made


def tails(rounds: Rounds, who: str) -> list[dict[str, Any]]:
    """Of a learner's samples, and of samples back to back, while `who` inserts; the limit is their own p50."""
    made = []
    for what, said in (("sample", "a learner's sample"), ("back_to_back", "samples back to back")):
        made.append(
            ledger.case(
                f"p99 of {said} of 256 while another {who} inserts",
                rounds.median("ours", f"{who} {what} p99"),
                "µs",
                peers={NOTHING: rounds.median("ours", f"{who} idle p99")} if what == "sample" else {},
                limit=rounds.median("ours", f"{who} {what} p50"),
                goals={"limit": 0.5},
                less_is_better=True,
                seeds=[0],
                spread=rounds.spread(f"{who} {what} p99"),
                idle_p50=rounds.median("ours", f"{who} idle p50"),
                inserted_per_s=rounds.median("ours", f"{who} inserted"),
            )
        )
    return made


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    count, loops = (2, 300) if args.quick else (5, 2_000)
    rng = np.random.default_rng(0)
    table = full_table(ROWS, rng)
    ours(table, 200, rng)  # compiles
    crossing(table, "blocks", 10_000)
    rounds, sampling = Rounds(), Sampling(table, rng)
    for _ in range(count):
        one_round(table, sampling, loops, rng, rounds)
    return ledger.result("replay", cases(rounds), rows=ROWS)


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
