"""Calls of one caller to an actor on Ray begin in their order, without Ray: an event loop is enough."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray")

from sparring.hosts.ray import actor as ray_actor
from sparring.hosts.ray.actor import Turns


async def begun(turns, turn, order, held=None):
    await turns.come(turn)
    if held is not None:
        await held.wait()
    turns.begin(turn)
    order.append(turn[1])


def played(play):
    """What it answers, in an event loop of its own: a browser of this session may have one in the first thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(play())).result()


def test_calls_that_come_late_begin_in_their_order():
    async def play():
        turns, order = Turns(known=True), []
        await asyncio.gather(*(begun(turns, ("a", number), order) for number in (3, 1, 0, 2)))
        return order

    assert played(play) == [0, 1, 2, 3]


def test_one_that_has_come_and_waits_for_an_argument_is_waited_for_and_one_that_was_lost_is_not(monkeypatch):
    monkeypatch.setattr(ray_actor, "TURN_S", 0.05)

    async def play():
        turns, order, held = Turns(known=True), [], asyncio.Event()
        calls = [
            asyncio.create_task(begun(turns, ("a", number), order, held if number == 0 else None)) for number in (0, 1)
        ]
        other = asyncio.create_task(begun(turns, ("b", 0), order))
        await asyncio.sleep(0.3)
        assert order == [0]  # of the other caller
        held.set()
        await asyncio.gather(*calls, other)
        await asyncio.gather(begun(turns, ("a", 4), order), begun(turns, ("a", 3), order))  # 2 never comes
        return order

    assert played(play) == [0, 0, 1, 3, 4]


def test_one_that_was_started_again_begins_where_its_callers_are():
    async def play():
        turns, order = Turns(known=False), []
        await asyncio.wait_for(begun(turns, ("a", 17), order), 1.0)
        await asyncio.wait_for(begun(turns, ("a", 18), order), 1.0)
        return order

    assert played(play) == [17, 18]
