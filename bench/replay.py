"""A prioritised table of a million steps of CartPole's size, in one process and fed by another.

    spar bench replay [--quick]

One process: loops of add 32, sample 256, update 256, beside cpprb and TorchRL. Our loop begins with 32 streams, walks
links and makes transitions; theirs are given both observations.
Two processes: another one hands over steps one by one, or as trajectories of 100, through shared memory; a step counts
when it is in the table. Beside Reverb, whose server and client are two processes. Items are sampled where each
learner would: ours in the table's process, while the other inserts; Reverb's in the client's.
The tail: a sample while a thread of the same process inserts, and while another process does: 32,000 steps/s in both.
The thread keeps to that rate: when it wakes late, it inserts all that is due. `idle_p99` is the tail of a loop that
takes as long as a sample and does nothing, alone, in the same rounds: what the machine itself adds.

Peers run in their own environments (`make bench-peers`), in turns with ours so that all meet the same machine.
A figure is the median of the rounds (5, quick 2), its spread the least and the most of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
from bench import ledger
from bench.peers.environments import python_of

from sparring.games import cartpole
from sparring.games.protocol import RUNNING, TERMINATED
from sparring.learn.crew.inlet import Inlet
from sparring.replay.sampler import Prioritised
from sparring.replay.steps import Steps
from sparring.replay.table import Table

ROWS, ADD, BATCH = 1_000_000, 32, 256
LENGTH, WAITING = 100, 65_536  # steps of a trajectory; steps that may wait between two processes
PEERS = {"cpprb": "cpprb 11.0.0", "torchrl": "TorchRL 0.14.1"}
GOALS = {"cpprb 11.0.0": 5.0, "TorchRL 0.14.1": 15.0}
REVERB = "Reverb 0.14.0"
CROSSING = {  # what is counted across processes, by the name that bench/peers/replay_reverb.py gives it
    "inserts": ("steps handed over one by one to another process", "steps/s"),
    "trajectory_steps": ("steps handed over as trajectories of 100", "steps/s"),
    "samples": ("items sampled while another process inserts", "items/s"),
}
PAUSE_S = 0.001  # between two inserts of ADD steps by the other thread or process: 32,000 steps/s


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
    """Seconds that each sample takes while a thread inserts ADD steps every PAUSE_S, those that are late at once."""
    stop, added = threading.Event(), steps(ADD, np.arange(ADD), rng)

    def insert() -> None:
        begun, done = time.perf_counter(), 0
        while not stop.is_set():
            time.sleep(PAUSE_S)
            while done < (time.perf_counter() - begun) / PAUSE_S - 1.0:
                table.insert(added)
                done += 1

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


def idle(lasting_s: float, times: int) -> list[float]:
    """Seconds that a loop takes which does nothing and lasts about `lasting_s` where nothing comes between."""
    turns = 100
    while (found := statistics.median(spin(turns) for _ in range(20))) < lasting_s:
        turns = int(turns * max(1.05, min(2.0, lasting_s / found)))
    return [spin(turns) for _ in range(times)]


def spin(turns: int) -> float:
    begun = time.perf_counter()
    for _ in range(turns):
        pass
    return time.perf_counter() - begun


class Writer:
    """Another process that hands steps over (this file with `--writer`), and the inlet that they come by."""

    def __init__(self, how: str, count: int) -> None:
        self.inlet = Inlet(cartpole.SPEC.seats[0], WAITING)
        descriptor = self.inlet.block.descriptor
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.replay", "--writer", how, str(descriptor), str(count)],
            pass_fds=(descriptor,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ledger.ROOT,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> Inlet:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self.inlet

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self.inlet.close()


def write(how: str, descriptor: int, count: int) -> None:
    """The other process: wait for "go", then hand `count` steps over; 0: go on until it is killed."""
    inlet = Inlet(cartpole.SPEC.seats[0], WAITING, descriptor=descriptor)
    rng = np.random.default_rng(0)
    many = steps(LENGTH, np.zeros(LENGTH, np.int64), rng)
    many.ending[-1] = TERMINATED
    seen = [{"observation/state": one} for one in many.observation["observation/state"]]
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    while done < count or not count:
        if how == "one by one":
            for place, one in enumerate(seen):
                while not inlet.insert(one, 0, 0.0, ending=TERMINATED if place == LENGTH - 1 else RUNNING):
                    time.sleep(0.0005)
            done += LENGTH
        elif how == "trajectories":
            left = many
            while (taken := inlet.extend(left)) < len(left):
                left = rest(left, taken)
                time.sleep(0.0005)
            done += LENGTH
        else:  # slowly
            inlet.extend(steps(ADD, np.zeros(ADD, np.int64), rng))
            time.sleep(PAUSE_S)


def rest(whole: Steps, first: int) -> Steps:
    """The steps from `first` on."""
    columns = {name: getattr(whole, name)[first:] for name in ("stream", "action", "reward", "ending")}
    return replace(whole, **columns, observation={name: one[first:] for name, one in whole.observation.items()})


def crossing(table: Table, how: str, count: int) -> float:
    """Steps/s from the other process into the table."""
    with Writer(how, count) as inlet:
        begun, taken = time.perf_counter(), 0
        while taken < count:
            taken += (fresh := inlet.drain(table))
            if fresh < LENGTH:
                time.sleep(0.0002)  # leave the core to whoever writes
        return taken / (time.perf_counter() - begun)


def beside_a_process(table: Table, samples: int, rng: np.random.Generator) -> tuple[float, list[float]]:
    """Items sampled per second, draining included, and what each sample takes, while another process inserts."""
    took = []
    with Writer("slowly", 0) as inlet:
        begun = time.perf_counter()
        for _ in range(samples):
            inlet.drain(table)
            before = time.perf_counter()
            table.sample(BATCH, rng, n_steps=1, discount=0.99)
            took.append(time.perf_counter() - before)
        rate = samples * BATCH / (time.perf_counter() - begun)
    return rate, took


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


def one_round(table: Table, loops: int, rng: np.random.Generator, rounds: Rounds) -> None:
    """Ours and every peer once, one after the other."""
    rounds.add("ours", "loop", 1.0 / statistics.median(ours(table, loops, rng)))
    for peer, name in PEERS.items():
        rounds.add(name, "loop", 1.0 / statistics.median(theirs(peer, loops)))
    rounds.add("ours", "inserts", crossing(table, "one by one", 50 * loops))
    rounds.add("ours", "trajectory_steps", crossing(table, "trajectories", 500 * loops))
    rate, took = beside_a_process(table, loops, rng)
    rounds.add("ours", "samples", rate)
    for name, value in reverb().items():
        rounds.add(REVERB, name, value)
    for what, found in (("process", took), ("thread", under_inserts(table, loops, rng))):
        for part, value in zip(("p50", "p99"), np.quantile(found, [0.5, 0.99]), strict=True):
            rounds.add("ours", f"{what} {part}", float(value * 1e6))
    nothing = idle(statistics.median(took), loops)
    rounds.add("nobody", "p99", float(np.quantile(nothing, 0.99) * 1e6))


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
    for what in ("thread", "process"):
        made.append(
            ledger.case(
                f"p99 of a sample of 256 while another {what} inserts",
                rounds.median("ours", f"{what} p99"),
                "µs",
                limit=rounds.median("ours", f"{what} p50"),  # its p50
                goals={"limit": 0.5},
                less_is_better=True,
                seeds=[0],
                spread=rounds.spread(f"{what} p99"),
                idle_p99=rounds.median("nobody", "p99"),
            )
        )
    return made


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    count, loops = (2, 300) if args.quick else (5, 2_000)
    rng = np.random.default_rng(0)
    table = full_table(ROWS, rng)
    ours(table, 200, rng)  # compiles
    crossing(table, "one by one", 10_000)
    rounds = Rounds()
    for _ in range(count):
        one_round(table, loops, rng, rounds)
    return ledger.result("replay", cases(rounds), rows=ROWS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--writer"]:
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
