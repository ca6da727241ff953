"""Threads that insert and one that samples: nothing is lost."""

import sys
import threading

import numpy as np
import pytest
from checkpointing import CAPACITY, LENGTH, episode, fresh_table


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_nothing_is_lost_between_threads_that_insert_and_one_that_samples():
    table, numbers, lock = fresh_table(), iter(range(CAPACITY // LENGTH // 2)), threading.Lock()
    table.insert(episode(0))

    def insert():
        while True:
            with lock:  # episodes share one stream, so one at a time
                if (number := next(numbers, None)) is None:
                    return
                table.insert(episode(number))

    threads = [threading.Thread(target=insert) for _ in range(3)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    while any(thread.is_alive() for thread in threads):
        _, rows = table.sample(64, rng, n_steps=1, discount=1.0)
        table.update_priorities(rows, rng.random(64))
    assert table.steps == (1 + CAPACITY // LENGTH // 2) * LENGTH
    batch, _ = table.sample(2_000, rng, n_steps=3, discount=1.0)
    now, then = batch.observation["observation/x"], batch.next_observation["observation/x"]
    assert (now[:, 0] == then[:, 0]).all()
    assert (then[:, 1] - now[:, 1] == batch.n_steps).all()
