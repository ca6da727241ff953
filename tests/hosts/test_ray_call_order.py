"""Calls of one caller to an actor on Ray begin in their order, without Ray: an event loop is enough."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray")

from sparring.hosts.ray import actor as ray_actor
from sparring.hosts.ray.actor import CallOrder


async def begun(calls, number, order, held=None):
    await calls.wait(number)
    if held is not None:
        await held.wait()
    calls.begin(number)
    order.append(number[1])


def played(play):
    """What it answers, in an event loop of its own: a browser of this session may have one in the first thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(play())).result()


def test_calls_that_come_late_begin_in_their_order():
    async def play():
        calls, order = CallOrder(known=True), []
        await asyncio.gather(*(begun(calls, ("a", number), order) for number in (3, 1, 0, 2)))
        return order

    assert played(play) == [0, 1, 2, 3]


def test_one_that_has_come_and_waits_for_an_argument_is_waited_for_and_one_that_was_lost_is_not(monkeypatch):
    monkeypatch.setattr(ray_actor, "ORDER_S", 0.05)

    async def play():
        calls, order, held = CallOrder(known=True), [], asyncio.Event()
        tasks = [
            asyncio.create_task(begun(calls, ("a", number), order, held if number == 0 else None)) for number in (0, 1)
        ]
        other = asyncio.create_task(begun(calls, ("b", 0), order))
        await asyncio.sleep(0.3)
        assert order == [0]  # of the other caller
        held.set()
        await asyncio.gather(*tasks, other)
        await asyncio.gather(begun(calls, ("a", 4), order), begun(calls, ("a", 3), order))  # 2 never comes
        return order

    assert played(play) == [0, 0, 1, 3, 4]


def test_one_that_was_started_again_begins_where_its_callers_are(monkeypatch):
    monkeypatch.setattr(ray_actor, "ORDER_S", 1e6)

    async def play():
        calls, order = CallOrder(known=False), []
        await asyncio.wait_for(begun(calls, ("a", 17), order), 60.0)
        await asyncio.wait_for(begun(calls, ("a", 18), order), 60.0)
        return order

    assert played(play) == [17, 18]
