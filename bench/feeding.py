"""A full table, and another process that hands steps over to it. For bench/replay.py and bench/tail.py.

python -m bench.feeding "one by one"|trajectories|paced DESCRIPTOR COUNT     the other process
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from bench import ledger

from sparring.games import cartpole
from sparring.games.protocol import RUNNING, TERMINATED
from sparring.learn.actors.cpu_yield import wait_for_a_turn
from sparring.learn.actors.inlet import Inlet
from sparring.replay.sampler import Prioritised
from sparring.replay.steps import Steps
from sparring.replay.table import Table

ROWS, ADD, BATCH = 1_000_000, 32, 256
LENGTH, WAITING = 100, 65_536  # steps of a trajectory; steps that may wait between two processes
PAUSE_S = 0.001  # between two inserts of ADD steps of who is paced: 32,000 steps/s


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


def paced(insert: Callable[[], object], over: Callable[[], bool]) -> None:
    """`insert` every PAUSE_S until it is over; one who woke late inserts all that is due."""
    begun, done = time.perf_counter(), 0
    while not over():
        time.sleep(PAUSE_S)
        while done < (time.perf_counter() - begun) / PAUSE_S - 1.0:
            insert()
            done += 1


class Writer:
    """Another process that hands steps over (this file, run), and the inlet that they come by."""

    def __init__(self, how: str, count: int) -> None:
        self.inlet = Inlet(cartpole.SPEC.seats[0], WAITING)
        descriptor = self.inlet.block.descriptor
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.feeding", how, str(descriptor), str(count)],
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
    few = steps(ADD, np.zeros(ADD, np.int64), rng)
    wait_for_a_turn()  # as apex's actors do
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
        else:
            paced(lambda: inlet.extend(few), lambda: False)


def rest(whole: Steps, first: int) -> Steps:
    """The steps from `first` on."""
    columns = {name: getattr(whole, name)[first:] for name in ("stream", "action", "reward", "ending")}
    return replace(whole, **columns, observation={name: one[first:] for name, one in whole.observation.items()})


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
