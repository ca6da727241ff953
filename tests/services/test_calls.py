"""Calls between real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from worker_services import Worker

from sparring.errors import Missing, Refused, Unreachable, WireError
from sparring.services.discovery import Local
from sparring.services.errors import Overloaded
from sparring.services.executor import VerbQueue
from sparring.services.register import Verb, register
from sparring.services.server import Server
from sparring.services.solver import CallFailed, CallLost, CallTimeout, Solver, service_status

HERE = Path(__file__).parent


@pytest.fixture
def start(folder):
    children = []

    def begin(id):
        child = subprocess.Popen(
            [sys.executable, str(HERE / "worker_services.py"), str(folder), id], stdout=subprocess.PIPE
        )
        children.append(child)
        assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.fixture
def solver(folder):
    with Solver(Local(folder)) as one:
        yield one


def test_a_class_an_instance_or_a_name_is_called_with_plain_data_and_arrays(start, solver):
    start("a")
    image = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    for service in (Worker, Worker(), "Worker"):
        values, named = solver.retrieve(service, "echo", 1, "two", image, [None, 2.5], deep={"x": image[:, ::2]})
        assert values[:2] == [1, "two"]
        assert values[3] == [None, 2.5]
        np.testing.assert_array_equal(values[2], image)
        np.testing.assert_array_equal(named["deep"]["x"], image[:, ::2])
        assert values[2].dtype == np.uint8
    assert solver.proxy(Worker).whoami() == "a"


def test_a_task_is_queued_and_answered_at_once_and_done_in_order(start, solver, tmp_path):
    gate = tmp_path / "gate"
    start("a")
    for number in range(3):  # nobody would come here if it waited for one of them
        solver.send(Worker, "work", number, str(gate))
    gate.touch()
    assert solver.retrieve(Worker, "worked") == [0, 1, 2]


def test_callers_are_served_in_batches_that_are_never_held_long(start, solver):
    start("a")
    answers = {}

    def ask(number):
        answers[number] = solver.retrieve(Worker, "double", np.full(3, number, np.float32))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answer in answers.items():
        np.testing.assert_array_equal(answer, np.full(3, 2 * number, np.float32))
    sizes = solver.retrieve(Worker, "batches")
    assert sum(sizes) == 16
    assert max(sizes) <= 8
    assert len(sizes) < 16
    begun = time.monotonic()
    assert solver.retrieve(Worker, "double", np.ones(2)).tolist() == [2, 2]  # another shape, and alone
    assert time.monotonic() - begun < 3 * 0.05
    with pytest.raises(WireError, match="it answered 1 callers with 2 rows"):
        solver.retrieve(Worker, "uneven", 1.0)


def test_errors_arrive_typed_with_their_story(start, solver):
    start("a")
    with pytest.raises(Missing) as ours:
        solver.retrieve(Worker, "breaks", "ours")
    assert str(ours.value) == "larder: there is no cheese. Buy some."
    assert 'raise Missing("there is no cheese"' in ours.value.story
    with pytest.raises(CallFailed) as theirs:
        solver.retrieve(Worker, "breaks", "theirs")
    assert "ZeroDivisionError: by nothing" in str(theirs.value)
    assert 'raise ZeroDivisionError("by nothing")' in theirs.value.story
    with pytest.raises(Refused, match=r"it has no verb 'fly'\. Ask for one of batches, breaks"):
        solver.retrieve(Worker, "fly")
    with pytest.raises(Exception, match="a object has no place in a call"):
        solver.retrieve(Worker, "breaks", "object")
    assert solver.retrieve(Worker, "whoami") == "a"


class Middle:
    """Calls another service to answer."""

    def __init__(self, solver):
        self._solver = solver

    @register()
    def ask(self, *args):
        return self._solver.retrieve(Worker, *args)


def test_the_story_of_an_error_comes_through_a_service_between(start, solver, folder):
    start("a")
    with Server(Middle(solver), Local(folder)), pytest.raises(CallFailed) as failed:
        solver.retrieve(Middle, "ask", "breaks", "theirs")
    assert str(failed.value) == "Worker: ZeroDivisionError: by nothing. Look at its traceback."
    told = "".join(traceback.format_exception(failed.value))  # what a person sees: here, between, and there
    assert told.index("in test_the_story") < told.index("in ask") < told.index("in breaks")
    assert told.count('raise ZeroDivisionError("by nothing")') == 1


def send_often(solver, times, verb, *args):
    for _ in range(times):
        solver.send(Worker, verb, *args)


def test_a_full_queue_refuses_or_makes_its_caller_wait(start, solver):
    start("a")
    with pytest.raises(Overloaded):
        send_often(solver, 8, "rare", 0.3)
    begun = time.monotonic()
    for _ in range(4):
        solver.send(Worker, "patient", 0.2)
    assert time.monotonic() - begun > 0.3
    with pytest.raises(CallTimeout):
        send_often(solver.within(0.1), 3, "patient", 0.5)


def test_every_call_has_a_deadline(start, solver):
    start("a")
    begun = time.monotonic()
    with pytest.raises(CallTimeout, match="a did not answer sleep in time"):
        solver.within(0.3).retrieve(Worker, "sleep", 5)
    assert 0.25 < time.monotonic() - begun < 1.0


def test_nobody_there_is_said_after_the_deadline(solver):
    with pytest.raises(Unreachable, match="no instance of Worker is there"):
        solver.within(0.2).retrieve(Worker, "whoami")


def test_a_killed_instance_is_gone_and_only_what_is_idempotent_is_asked_again(start, solver):
    children = {id: start(id) for id in ("a", "b", "c")}
    assert {solver.retrieve(Worker, "whoami") for _ in range(40)} == set(children)
    for verb in ("sleep", "nap"):
        sticky = solver.sticky(f"of {verb}")
        held = sticky.retrieve(Worker, "whoami")
        killer = threading.Timer(0.3, children[held].kill)
        killer.start()
        begun = time.monotonic()
        if verb == "nap":
            assert sticky.retrieve(Worker, "nap", 1.0) != held
        else:
            with pytest.raises(CallLost):
                sticky.retrieve(Worker, "sleep", 20)
            assert time.monotonic() - begun < 9.0  # far below what it was to take
        killer.join()
        children.pop(held).wait()
        assert {solver.retrieve(Worker, "whoami") for _ in range(40)} == set(children)


def test_calls_of_one_key_stay_with_one_instance_and_others_are_spread_by_load(start, solver):
    for id in ("a", "b", "c"):
        start(id)
    for key in range(12):
        sticky = solver.sticky(f"env-{key}")
        assert len({sticky.retrieve(Worker, "whoami") for _ in range(5)}) == 1
    asleep = solver.sticky("sleeper").retrieve(Worker, "whoami")
    busy = threading.Thread(target=lambda: solver.sticky("sleeper").retrieve(Worker, "sleep", 1.0))
    busy.start()
    time.sleep(0.1)
    begun = time.monotonic()
    others = {solver.retrieve(Worker, "whoami") for _ in range(20)}
    assert time.monotonic() - begun < 0.8
    assert others == {"a", "b", "c"} - {asleep}
    busy.join()


def test_a_key_stays_with_its_instance_when_others_come(start, solver):
    start("a")
    keys = [solver.sticky(f"env-{key}") for key in range(8)]
    assert {key.retrieve(Worker, "whoami") for key in keys} == {"a"}
    for id in ("b", "c"):
        start(id)
    until = time.monotonic() + 10
    while {solver.retrieve(Worker, "whoami") for _ in range(6)} != {"a", "b", "c"} and time.monotonic() < until:
        pass
    assert {key.retrieve(Worker, "whoami") for key in keys for _ in range(3)} == {"a"}
    assert {solver.sticky(f"new-{key}").retrieve(Worker, "whoami") for key in range(6)} == {"a", "b", "c"}


def test_calls_in_an_event_loop(start, solver):
    start("a")

    async def many():
        try:
            answers = await asyncio.gather(
                *(solver.retrieve_async(Worker, "double", np.full(2, n, np.float32)) for n in range(64))
            )
            assert [int(answer[0]) for answer in answers] == [2 * n for n in range(64)]
            with pytest.raises(Missing):
                await solver.retrieve_async(Worker, "breaks", "ours")
            with pytest.raises(CallTimeout):
                await solver.within(0.2).retrieve_async(Worker, "sleep", 2)
            await solver.send_async(Worker, "work", 7)
            assert await solver.proxy_async(Worker).worked() == [7]
        finally:
            await solver.close_async()

    asyncio.run(many())


def test_a_hundred_services_leave_nothing_behind(folder):
    def ten():
        servers = [Server(Worker(str(n)), Local(folder)).start() for n in range(10)]
        with Solver(Local(folder)) as solver:
            assert solver.retrieve(Worker, "echo", np.zeros(100_000))[0][0].sum() == 0
        for server in servers:
            server.close()

    ten()
    handles, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(10):
        ten()
    assert list(folder.iterdir()) == []
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= handles


def test_sigterm_ends_a_service_cleanly_and_kill_leaves_no_route(start, folder, solver):
    child = start("a")
    child.send_signal(signal.SIGTERM)
    assert child.wait(3) == 0
    assert list(folder.iterdir()) == []
    killed = start("b")
    killed.kill()
    killed.wait()
    with pytest.raises(Unreachable):
        solver.within(0.3).retrieve(Worker, "whoami")
    assert list(folder.iterdir()) == []


def test_calls_that_begin_together_are_spread(start, solver, tmp_path):
    for id in ("a", "b"):
        start(id)
    assert solver.retrieve(Worker, "whoami")
    held, over = [], tmp_path / "over"
    patient = solver.within(60)
    threads = [
        threading.Thread(target=lambda: held.append(patient.retrieve(Worker, "until", str(over)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    counts = waiting(solver)
    over.touch()
    for thread in threads:
        thread.join()
    assert counts == {"a": 2, "b": 2}  # while none of them was answered
    assert sorted(held) == ["a", "a", "b", "b"]


def test_a_quick_verb_stays_so_after_one_slow_call_and_not_after_two_or_a_long_one():
    queue = VerbQueue(Verb("act"), None)
    for case, quick in (((1e-4,) * 3, False), ((1e-4,), True), ((1e-3, 1e-4, 1e-3), True), ((1e-4,), True)):
        for seconds in case:
            queue.took(seconds)
        assert queue.is_quick is quick
    queue.took(0.1)
    assert not queue.is_quick
    for seconds in (*(1e-4,) * 4, 1e-3, 1e-3):
        queue.took(seconds)
    assert not queue.is_quick


def waiting(solver):
    """How many calls are at each instance, once there are four."""
    until = time.monotonic() + 30
    while True:
        counts = {one.id: outstanding or 0 for one, outstanding in service_status(solver._discovery)}
        if sum(counts.values()) == 4 or time.monotonic() > until:
            return counts
        time.sleep(0.02)
