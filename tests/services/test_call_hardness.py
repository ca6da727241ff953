"""What calls withstand: nonsense, other versions, deaths on either side, full memory; and what they leave behind."""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from worker_services import Worker

from sparring.errors import SparringError, WireError
from sparring.services import frames
from sparring.services.discovery import Local
from sparring.services.frames import CALL, Codec, Head
from sparring.services.server import Server
from sparring.services.shared_memory import ARENA_BYTES, LARGE_BYTES, Arena, Mapped
from sparring.services.solver import CallLost, Solver

HERE = Path(__file__).parent
HOLDER = """
import sys, time
from pathlib import Path
import numpy as np
from sparring.services.discovery import Local
from sparring.services.solver import Solver
solver = Solver(Local(Path(sys.argv[1])))
held = [solver.retrieve("Worker", "echo", np.full(1 << 20, n, np.uint8)) for n in range(40)]
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def server(folder):
    with Server(Worker("a"), Local(folder), id="a") as one:
        yield one


@pytest.fixture
def solver(folder):
    with Solver(Local(folder)) as one:
        yield one


def mutated(message: bytes, rng: random.Random) -> bytes:
    changed = bytearray(message)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(changed)) if changed else 0
        kind = rng.randrange(4)
        if kind == 0 and changed:
            changed[place] = rng.randrange(256)
        elif kind == 1 and changed:
            del changed[place : place + rng.randint(1, 8)]
        elif kind == 2:
            changed[place:place] = rng.randbytes(rng.randint(1, 8))
        else:
            changed = changed[:place]
    return bytes(changed)


@pytest.mark.parametrize("messages", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_messages_neither_end_the_service_nor_hold_it_up(server, solver, messages):
    rng, codec = random.Random(0), Codec()
    bodies = [
        [[np.arange(5, dtype=np.float32), {"x": [1, None]}], {"deep": {"y": np.zeros((2, 3), np.int64)}}],
        [[np.zeros(3000, np.float32)], {}],
        [[1.0], {}],
    ]
    verbs = ["echo", "double", "whoami", "uneven", "batches"]
    stranger = zmq.Context()
    line = stranger.socket(zmq.DEALER)
    line.setsockopt(zmq.LINGER, 0)
    line.connect(server.address)
    for number in range(messages):
        head = Head(frames.VERSION, rng.randrange(3), number, rng.choice(verbs), 1.0, rng.choice(bodies))
        said = [bytes(part) for part in codec.encode(head)]
        place = rng.randrange(len(said))
        said[place] = mutated(said[place], rng)
        if rng.random() < 0.1:
            said = [mutated(frames.together([bytes(codec.encode(head)[0])] * rng.randint(2, 9)), rng)]
        elif rng.random() < 0.1:
            said = [rng.randbytes(rng.randrange(40)) for _ in range(rng.randint(1, 4))]
        line.send_multipart(said)
        if number % 50 == 0:  # as fast as they are read, so that none is dropped on the way
            assert solver.retrieve(Worker, "whoami") == "a"
        while line.poll(0):
            line.recv_multipart()
    assert solver.retrieve(Worker, "echo", 1) == [[1], {}]
    stranger.destroy(linger=0)


def test_another_version_is_told_so(server):
    stranger = zmq.Context()
    line = stranger.socket(zmq.DEALER)
    line.connect(server.address)
    line.send(msgspec.msgpack.encode([9, CALL, 77, "whoami", 1.0, [[], {}]]))
    assert line.poll(3000)
    answer = Codec().decode(line.recv_multipart())
    assert answer.id == 77
    assert answer.body["wrong"] == f"it speaks version 9, and {frames.VERSION} is spoken here"
    stranger.destroy(linger=0)


def test_what_is_too_large_is_refused_before_it_is_sent(server, solver):
    with pytest.raises(WireError, match="bytes of plain data and 0 arrays of 0 bytes are too much"):
        solver.retrieve(Worker, "echo", "x" * (frames.MAX_HEAD_BYTES + 1))
    assert solver.retrieve(Worker, "whoami") == "a"


@pytest.mark.parametrize("size", [0, 1, 24, 4096, 4097, LARGE_BYTES - 1, LARGE_BYTES, 1_000_000])
def test_arrays_of_every_size_arrive_whole_and_read_only(server, solver, size):
    sent = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    for _ in range(10):
        ((got, same, mask), _) = solver.retrieve(Worker, "echo", sent, sent[::2], sent > 100)
        np.testing.assert_array_equal(got, sent)
        np.testing.assert_array_equal(same, sent[::2])
        np.testing.assert_array_equal(mask, sent > 100)
        assert not got.flags.writeable

    async def several():
        answers = await asyncio.gather(*(solver.retrieve_async(Worker, "echo", sent) for _ in range(8)))
        for answer in answers:
            np.testing.assert_array_equal(answer[0][0], sent)
        await solver.close_async()

    asyncio.run(several())


def test_a_large_answer_lies_in_shared_memory_until_nobody_looks_at_it(server, solver):
    got = solver.retrieve(Worker, "echo", np.ones(1 << 20, np.uint8))[0][0]
    view = got[10:20]
    del got
    assert server._arena.held_bytes() == 1 << 20
    for _ in range(50):
        solver.retrieve(Worker, "echo", np.zeros(1 << 20, np.uint8))
    assert view.tolist() == [1] * 10
    del view
    gc.collect()
    assert server._arena.held_bytes() == 0


def test_answers_that_are_kept_beyond_the_solver_stay_as_they_are(folder, server):
    with Solver(Local(folder)) as first:
        kept = [first.retrieve(Worker, "echo", np.full(1 << 20, n, np.uint8))[0][0] for n in range(5)]
    with Solver(Local(folder)) as second:
        for _ in range(50):
            second.retrieve(Worker, "echo", np.full(1 << 20, 99, np.uint8))
    assert [int(one.min()) for one in kept] == [int(one.max()) for one in kept] == list(range(5))


def test_a_full_arena_sends_arrays_in_frames_and_recovers(folder, server, solver):
    big = np.ones(ARENA_BYTES // 4, np.uint8)
    held = [solver.retrieve(Worker, "echo", big)[0][0] for _ in range(5)]
    assert all(one[-1] == 1 for one in held)
    assert server._arena.held_bytes() == ARENA_BYTES
    del held
    gc.collect()
    assert server._arena.held_bytes() == 0
    whole = solver.retrieve(Worker, "echo", np.ones(ARENA_BYTES, np.uint8))[0][0]  # blocks were joined again
    assert server._arena.held_bytes() == ARENA_BYTES
    assert whole[-1] == 1


def test_blocks_of_a_caller_that_was_killed_come_back(folder, server):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    assert server._arena.held_bytes() == 40 << 20
    holder.kill()
    holder.wait()
    holder.stdout.close()
    until = time.monotonic() + 3
    while server._arena.held_bytes() and time.monotonic() < until:
        time.sleep(0.02)
    assert server._arena.held_bytes() == 0
    assert os.fstat(server._arena.handle).st_blocks * 512 < 8 << 20  # given back to the system


def test_memory_that_could_shrink_is_not_looked_at():
    handle = os.memfd_create("x")
    os.ftruncate(handle, LARGE_BYTES + ARENA_BYTES)
    with pytest.raises(OSError, match="its size is not sealed"):
        Mapped(handle, None, 0)
    arena = Arena()
    with pytest.raises(OSError, match="Operation not permitted"):
        os.ftruncate(arena.handle, 0)
    arena.close()


def test_a_callee_killed_under_calls_is_lost_within_a_second(folder, solver):
    child = subprocess.Popen(
        [sys.executable, str(HERE / "worker_services.py"), str(folder), "k"], stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"ready\n"
    threading.Timer(0.3, child.kill).start()

    async def several():
        begun = time.monotonic()
        found = await asyncio.gather(
            *(solver.retrieve_async(Worker, "sleep", 20) for _ in range(3)), return_exceptions=True
        )
        assert [type(one) for one in found] == [CallLost] * 3
        assert time.monotonic() - begun < 1.5
        await solver.close_async()

    asyncio.run(several())
    child.wait()
    child.stdout.close()


def test_a_service_that_ends_sends_its_callers_elsewhere(folder, solver):
    first = Server(Worker("a"), Local(folder), id="a").start()
    second = Server(Worker("b"), Local(folder), id="b").start()
    wrong, over = [], threading.Event()

    def call():
        while not over.is_set():
            try:
                solver.retrieve(Worker, "whoami")
            except SparringError as error:
                wrong.append(error)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    time.sleep(0.3)
    first.close()
    time.sleep(0.2)
    over.set()
    for caller in callers:
        caller.join()
    second.close()
    assert wrong == []


def test_a_batch_is_never_held_longer_than_it_may_be(server, solver):
    solver.retrieve(Worker, "double", np.ones(2))
    held = []
    for _ in range(10):
        begun = time.monotonic()
        solver.retrieve(Worker, "double", np.ones(2))  # alone: it waits for others the whole 50 ms, and no longer
        held.append(time.monotonic() - begun)
    assert min(held) >= 0.049
    assert sorted(held)[5] < 0.2


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_processes_that_were_called_and_ended_leave_nothing_behind(folder, solver, how):
    before, shared = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    command = [sys.executable, str(HERE / "worker_services.py"), str(folder)]
    children = [subprocess.Popen([*command, f"w{number}"], stdout=subprocess.PIPE) for number in range(6)]
    for child in children:
        assert child.stdout.readline() == b"ready\n"
    large, seen = np.ones(100_000, np.uint8), set()
    for _ in range(60):  # they take turns
        seen.add(solver.retrieve(Worker, "whoami"))
    assert len(seen) == 6
    for _ in range(6):
        assert solver.retrieve(Worker, "echo", large)[0][0][-1] == 1
    for child in children:
        child.send_signal(how)
    for child in children:
        child.wait()
        child.stdout.close()
    solver.close()
    gc.collect()
    there = Local(folder)
    assert not any(there.alive(one) for one in there.instances("Worker"))
    assert list(folder.iterdir()) == []
    assert set(os.listdir("/dev/shm")) - shared == set()
    assert len(os.listdir("/proc/self/fd")) <= before
