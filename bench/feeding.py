"""A full table, and another process that hands steps over to it. For bench/replay.py and bench/tail.py.

python -m bench.feeding blocks|paced DESCRIPTOR COUNT     the other process
"""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Self

import numpy as np
from bench import ledger

from sparring.acting.actor import NO_EPISODES
from sparring.games import cartpole
from sparring.games.protocol import RUNNING, TERMINATED
from sparring.learn.actors.actor_process import yield_cpu
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.experience import StepBlockRing, joined
from sparring.nets.torch_network import default_heads, default_network
from sparring.replay.sampler import Prioritised, Sampler
from sparring.replay.steps import Steps
from sparring.replay.table import Table

ROWS, ADD, BATCH = 1_000_000, 32, 256
SLOTS = 64  # blocks that may wait between two processes
BLOCKS = {"blocks": (16, 8), "paced": (1, ADD)}  # ticks and streams of one block
PAUSE_S = 0.001  # between two inserts of ADD steps of who is paced: 32,000 steps/s


def full_table(rows: int, rng: np.random.Generator, sampler: Sampler | None = None) -> Table:
    """Prioritised where no other sampler is given."""
    seat = cartpole.SPEC.seats[0]
    table = Table(seat, rows, streams=ADD, masks=False, sampler=sampler or Prioritised(rows, 0.6, 0.4))
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
    """Another process that hands blocks of steps over (this file, run), and the ring buffer that they come by."""

    def __init__(self, how: str, count: int) -> None:
        self._ring = ring_of(how)
        descriptor = self._ring.block.descriptor
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

    def drain(self, table: Table) -> int:
        """Insert the blocks that wait, as LocalReplay does; how many steps they had."""
        taken = 0
        for _ in range(self._ring.ready()):
            block = joined(self._ring.to_read(), cartpole.SPEC.seats[0])
            table.insert(block.steps)
            taken += len(block.steps)
            self._ring.release()
        return taken

    def __enter__(self) -> Self:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._ring.close()


def ring_of(how: str, descriptor: int | None = None) -> StepBlockRing:
    ticks, streams = BLOCKS[how]
    seat = cartpole.SPEC.seats[0]
    network = default_network(seat, hidden=(8,), heads=default_heads(seat.action))
    part = {"game": "cartpole", "spec": cartpole.SPEC, "network": network, "policy": "greedy"}
    return StepBlockRing(ActorSpec(**part, envs=streams, seed=0, feeds="steps", ticks=ticks, slots=SLOTS), descriptor)


def write(how: str, descriptor: int, count: int) -> None:
    """The other process: wait for "go", then hand `count` steps over; 0: go on until it is killed."""
    out, rng = ring_of(how, descriptor), np.random.default_rng(0)
    ticks, streams = BLOCKS[how]
    block = [steps(streams, np.arange(streams), rng) for _ in range(ticks)]
    for number, tick in enumerate(block):
        tick.ending[:] = TERMINATED if number == ticks - 1 and ticks > 1 else RUNNING
    yield_cpu()  # as apex's actors do
    print("ready", flush=True)
    sys.stdin.readline()

    def hand_over() -> None:
        while not out.room():
            time.sleep(0.0002)
        out.write(block, NO_EPISODES, version=0, env_steps=ticks * streams, games=0)

    if how == "paced":
        paced(hand_over, lambda: False)
    for _ in range(0, count, ticks * streams):
        hand_over()


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
