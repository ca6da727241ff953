"""A checkpoint is of one moment, though others go on inserting; killed in the middle, the one before is whole."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from checkpointing import CAPACITY, check, episode, fresh_table

from sparring.replay.rows import SNAPSHOT_SLICE_BYTES as SLICE_BYTES
from sparring.replay.rows import Snapshot
from sparring.wire.tree import pack, pack_parts, part_bytes, unpack, unpack_parts


def test_a_table_saved_under_inserts_and_lessons_is_of_one_moment():
    table, stop, failed = fresh_table(), threading.Event(), []
    for number in range(CAPACITY // 4):
        table.insert(episode(number))

    def insert():
        number, rng = CAPACITY // 4, np.random.default_rng(0)
        try:
            while not stop.is_set():
                table.insert(episode(number))
                number += 1
                _, rows = table.sample(64, rng, n_steps=1, discount=1.0)
                table.update_priorities(rows, rng.random(64))
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        for _ in range(4):
            before = table.steps
            state = table.save()
            copy = fresh_table()
            copy.load(unpack(pack(state)))
            assert copy.steps >= before
            check(copy)
            for number in range(copy.steps // 7, copy.steps // 7 + 50):
                copy.insert(episode(number))
            check(copy)
    finally:
        stop.set()
        thread.join()
    assert not failed
    check(table)


def test_a_snapshot_shows_every_row_as_it_stood_however_rows_change_meanwhile():
    rng, rows = np.random.default_rng(0), 3 * SLICE_BYTES // 8 + 17
    column = rng.random((rows + 100, 1))
    stood = column[:rows].copy()
    snapshot = Snapshot(column, rows, threading.RLock())
    for _ in range(3):
        changing = rng.integers(0, rows + 100, 40)
        snapshot.about_to_change(changing)
        column[changing] = -1.0
        snapshot.copy_next()
    assert (np.asarray(snapshot) == stood).all()
    assert not snapshot.rows_left()


def test_nobody_waits_for_a_larger_slice_where_steps_are_larger():
    frames, lock = np.zeros((200, 84 * 84), np.uint8), threading.RLock()
    assert Snapshot(frames, 200, lock).slice_rows == SLICE_BYTES // 84**2
    assert Snapshot(frames, 0, lock).copy_next() is False
    vast = Snapshot(np.zeros((3, SLICE_BYTES + 1), np.uint8), 3, lock)
    assert [vast.copy_next() for _ in range(4)] == [True, True, True, False]


def test_what_changes_while_a_thread_writes_is_not_in_the_checkpoint():
    table = fresh_table()
    for number in range(CAPACITY // 4):
        table.insert(episode(number))
    whole = unpack(pack(table.save()))
    small, large = np.arange(10), np.arange(100_000)
    parts = pack_parts({"table": table.save(), "small": small, "large": large, "bytes": bytes(100_000), "none": None})
    small[:] = large[:] = -1
    rng = np.random.default_rng(0)
    for number in range(CAPACITY // 4, CAPACITY // 2):
        table.insert(episode(number))
        _, rows = table.sample(8, rng, n_steps=1, discount=1.0)
        table.update_priorities(rows, rng.random(8))
    found = unpack_parts(b"".join(map(part_bytes, parts)))
    assert pack(found["table"]) == pack(whole)
    assert (found["small"] == np.arange(10)).all()
    assert (found["large"] == np.arange(100_000)).all()
    assert (found["bytes"], found["none"]) == (bytes(100_000), None)


def test_a_second_checkpoint_leaves_the_first_as_it_was():
    table = fresh_table()
    table.insert(episode(0))
    first = table.save()
    table.insert(episode(1))
    second = table.save()
    table.insert(episode(2))
    for state, steps in ((first, 7), (second, 14)):
        copy = fresh_table()
        copy.load(state)
        assert copy.steps == steps
        check(copy)


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.11])
def test_a_kill_in_the_middle_leaves_the_checkpoint_before_whole(tmp_path, delay_s):
    path = tmp_path / "table"
    script = Path(__file__).with_name("checkpointing.py")
    child = subprocess.Popen([sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(2):
            assert child.stdout.readline() == "kept\n"
        time.sleep(delay_s)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    table = fresh_table()
    table.load(unpack(path.read_bytes()))
    check(table)
