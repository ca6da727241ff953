"""A process that inserts in one thread and keeps checkpoints in another, until it is killed."""

import sys
import threading
from pathlib import Path

import numpy as np

from sparring.durable import replace_file
from sparring.games.protocol import RUNNING, TRUNCATED
from sparring.games.spec import SeatSpec, discrete, vector
from sparring.replay.sampler import Prioritised
from sparring.replay.steps import Steps
from sparring.replay.table import Table
from sparring.wire.tree import pack

CAPACITY, LENGTH = 20_000, 7
SEAT = SeatSpec(
    name="one", observation=(vector("observation/x", 3),), action=discrete(4), reward_bounds=(-1000.0, 1000.0)
)


def fresh_table():
    return Table(SEAT, CAPACITY, streams=1, masks=False, sampler=Prioritised(CAPACITY, 0.6, 0.4))


def episode(number):
    """LENGTH steps that say whose they are, cut at the end."""
    place = np.arange(LENGTH + 1, dtype=np.float32)
    views = np.stack([np.full(LENGTH + 1, number, np.float32), place, place * 0], axis=1)
    return Steps(
        stream=np.zeros(LENGTH, np.int64),
        observation={"observation/x": views[:-1]},
        action=np.zeros(LENGTH, np.int32),
        reward=np.full(LENGTH, number, np.float32),
        ending=np.array([RUNNING] * (LENGTH - 1) + [TRUNCATED], np.uint8),
        legal=None,
        behaviour_logp=None,
        value=None,
        final=np.array([LENGTH - 1]),
        final_observation={"observation/x": views[-1:]},
    )


def check(table):
    """That all transitions are of single episodes, and that the table holds the newest ones without a gap."""
    batch, _ = table.sample(5_000, np.random.default_rng(0), n_steps=3, discount=1.0)
    now, then = batch.observation["observation/x"], batch.next_observation["observation/x"]
    assert (now[:, 0] == then[:, 0]).all()
    assert (then[:, 1] - now[:, 1] == batch.n_steps).all()
    assert (batch.reward == now[:, 0] * batch.n_steps).all()
    assert table.steps % LENGTH == 0
    last = table.steps // LENGTH - 1
    held = min(table.written, CAPACITY)
    kept = np.unique(table._columns["observation/x"][:held, 0].astype(int))
    assert kept.tolist() == list(range(int(kept[0]), last + 1))
    assert len(table.sampler) <= held


def main(path):
    table = fresh_table()

    def insert():
        number = 0
        while True:
            table.insert(episode(number))
            number += 1

    threading.Thread(target=insert, daemon=True).start()
    while True:
        replace_file(Path(path), pack(table.save()))
        sys.stdout.write("kept\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
