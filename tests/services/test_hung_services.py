"""What callers meet when a service lives and does not answer: every call ends at its deadline, and as CallTimeout."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from worker_services import Worker

from sparring.services.client import MAX_UNDER_WAY
from sparring.services.discovery import Local
from sparring.services.server import Server
from sparring.services.solver import CallLost, CallTimeout, Solver


@pytest.fixture
def solver(folder):
    with Solver(Local(folder)) as one:
        yield one


@pytest.fixture
def child(folder):
    """A service in a process of its own."""
    program = Path(__file__).parent / "worker_services.py"
    process = subprocess.Popen([sys.executable, str(program), str(folder), "h"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def hung(child):
    """One that was stopped before anybody called it; it goes on with SIGCONT."""
    child.send_signal(signal.SIGSTOP)
    while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    return child


def test_the_first_call_of_one_that_hangs_is_late_in_time_and_it_can_be_called_afterwards(hung, solver):
    begun = time.monotonic()
    with pytest.raises(CallTimeout):
        solver.within(0.3).retrieve(Worker, "whoami")
    assert time.monotonic() - begun < 0.9
    hung.send_signal(signal.SIGCONT)
    large = np.ones(100_000, np.uint8)
    assert [solver.retrieve(Worker, "echo", large)[0][0].sum() for _ in range(5)] == [100_000] * 5


@pytest.mark.slow
def test_more_calls_than_can_be_under_way_are_late_too(hung, solver):
    """Thousands of them, each given up soon: ZeroMQ takes no more of them at some time."""

    async def flood():
        brief = solver.within(0.1)
        for _ in range(6):
            calls = (brief.retrieve_async(Worker, "echo", bytes(4000)) for _ in range(400))
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(one) for one in found} == {CallTimeout}
        hung.send_signal(signal.SIGCONT)
        assert await solver.retrieve_async(Worker, "whoami") == "h"
        await solver.close_async()

    asyncio.run(flood())


def test_who_waits_for_room_among_patient_callers_is_late_at_its_own_deadline(folder, solver, tmp_path):
    over = tmp_path / "over"

    async def crowd():
        patient = solver.within(60)
        assert await patient.retrieve_async(Worker, "whoami") == "a"  # connected: the next calls are sent at once
        calls = [
            asyncio.ensure_future(patient.retrieve_async(Worker, "until", str(over))) for _ in range(MAX_UNDER_WAY)
        ]
        await asyncio.sleep(0)
        begun = time.monotonic()
        with pytest.raises(CallTimeout):
            await solver.within(0.3).retrieve_async(Worker, "whoami")
        assert time.monotonic() - begun < 0.9
        over.touch()
        assert await asyncio.gather(*calls) == ["a"] * len(calls)
        await solver.close_async()

    with Server(Worker("a"), Local(folder), id="a"):
        asyncio.run(crowd())


def test_who_waits_for_room_at_one_that_dies_is_answered_by_another(child, folder, solver, tmp_path):
    async def crowd():
        patient = solver.within(60)
        assert await patient.retrieve_async(Worker, "whoami") == "h"  # connected: the next calls are sent at once
        calls = [
            asyncio.ensure_future(patient.retrieve_async(Worker, "until", str(tmp_path / "never")))
            for _ in range(MAX_UNDER_WAY)
        ]
        waits = asyncio.ensure_future(patient.retrieve_async(Worker, "whoami"))
        await asyncio.sleep(0)
        with Server(Worker("b"), Local(folder), id="b"):
            child.kill()
            assert {type(one) for one in await asyncio.gather(*calls, return_exceptions=True)} == {CallLost}
            assert await waits == "b"
        await solver.close_async()

    asyncio.run(crowd())
