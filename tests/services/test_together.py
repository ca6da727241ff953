"""Small messages that travel in one frame: each is answered as if it had come alone."""

import asyncio
import threading

import msgspec
import numpy as np
import pytest
import zmq
from worker_services import Worker

from sparring.services import frames
from sparring.services.discovery import Instance, Local
from sparring.services.frames import ANSWER, CALL, ERROR, VERSION, Codec, Head, together
from sparring.services.server import Server
from sparring.services.solver import Solver


@pytest.fixture
def line(folder):
    """A caller's bare socket to a service that runs."""
    with Server(Worker("a"), Local(folder), id="a") as server, zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(server.address)
        yield socket
        socket.close()


def call(number, verb, *args):
    (head,) = Codec().encode(Head(VERSION, CALL, number, verb, 10.0, [args, {}]))
    return head


def answers(line, count):
    """The answers by number, and how many messages they came in."""
    found, messages = {}, 0
    while len(found) < count:
        assert line.poll(10_000), f"only {sorted(found)} came"
        (first,) = line.recv_multipart()
        messages += 1
        for answer in Codec().decode_each([first]):
            assert answer.id not in found
            found[answer.id] = answer
    return found, messages


def test_calls_that_came_together_are_answered_each_and_together_once_they_are_quick(line):
    for number in range(8):  # so that the service knows it as quick
        line.send(call(number, "echo", number))
        answers(line, 1)
    line.send(together([call(100 + n, "echo", np.full(3, n)) for n in range(20)]))
    found, messages = answers(line, 20)
    assert messages < 20
    for n in range(20):
        np.testing.assert_array_equal(found[100 + n].body[0][0], np.full(3, n))


def test_one_that_is_unsound_among_several_takes_nothing_from_the_others(line):
    unknown = msgspec.msgpack.encode([VERSION, CALL, 3, "echo", 1.0, [[msgspec.msgpack.Ext(29, b"what")], {}]])
    other = msgspec.msgpack.encode([9, CALL, 4, "echo", 1.0, [[], {}]])
    line.send(together([call(1, "whoami"), call(2, "no_such_verb"), unknown, other, call(5, "whoami")]))
    found, _ = answers(line, 5)
    assert {number: answer.kind for number, answer in found.items()} == {
        1: ANSWER,
        2: ERROR,
        3: ERROR,
        4: ERROR,
        5: ANSWER,
    }
    assert found[4].body["wrong"] == f"it speaks version 9, and {VERSION} is spoken here"


def test_what_pretends_to_hold_several_is_refused_and_the_service_goes_on(line):
    many = together([call(1, "whoami")] * 2)
    for nonsense in (many[:1], many[:9], many + b"\0", many[:4] + bytes(20), many[:1] + bytes(frames.MAX_BYTES >> 10)):
        assert not Codec().decode_each([nonsense])
        line.send(nonsense)
    line.send(call(7, "whoami"))
    found, _ = answers(line, 1)
    assert found[7].body == "a"


class Wire:
    """A service by hand, which answers all that came in one frame in one frame, and keeps how many there were."""

    def __init__(self, folder):
        self.sizes = []
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.ROUTER)
        local = Local(folder)
        self._door = local.listen(self._inbox, "ByHand", "b")
        self._told = local.announce(
            Instance(service="ByHand", id="b", address=self._door.address, pid=0, idempotent=())
        )
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        waiting = []  # so that there is more than one at the first answer
        while True:
            caller, first = self._inbox.recv_multipart()
            heads = Codec().decode_each([first])
            if any(head.verb == "end" for head in heads):
                self._inbox.send_multipart([caller, self._answer(heads[0])])
                return
            self.sizes.append(len(heads))
            waiting += heads
            if len(waiting) >= 20:
                self._inbox.send_multipart([caller, together([self._answer(head) for head in waiting])])
                waiting = []

    def _answer(self, head):
        (said,) = Codec().encode(Head(VERSION, ANSWER, head.id, "", 0.0, head.body[0]))
        return said

    def close(self):
        self._thread.join()
        self._told.close()
        self._inbox.close(linger=0)
        self._door.close()
        self._context.destroy(linger=0)


def test_callers_of_one_event_loop_send_together_what_they_ask_at_once(folder):
    async def talk():
        async def one(name):
            for turn in range(20):
                assert await solver.retrieve_async("ByHand", "echo", name, turn) == [name, turn]

        with Solver(Local(folder)) as solver:
            await asyncio.gather(*(one(name) for name in range(20)))
            await solver.retrieve_async("ByHand", "end")
            await solver.close_async()

    wire = Wire(folder)
    asyncio.run(talk())
    wire.close()
    assert sum(wire.sizes) == 400
    assert max(wire.sizes) >= 2
