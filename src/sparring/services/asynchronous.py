"""The same calls for programs that live in an event loop: many under way on one socket to each instance."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.backend import zmq_poll

from sparring.errors import SparringError, WireError
from sparring.services.failure import late, lost
from sparring.services.frames import (
    MOST_TOGETHER,
    VERSION,
    Codec,
    Head,
    are_several,
    is_small,
    messages_of,
    number_of,
    together,
)
from sparring.services.handover import Peer
from sparring.services.lines import AT_ONCE, LOOK_S, READABLE, House, plain_send
from sparring.services.routes import Target

MAX_UNDER_WAY = 512  # calls on one line; who comes later waits for the answer of another
MAX_AT_ONCE = 64  # answers read before others in the loop have their turn
MANY, GROUPS = 16, 2  # with so many calls under way they travel together, in so many groups at least


class LoopLines:
    """Sockets of one event loop."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._lines: dict[Target, LoopLine] = {}

    def known(self, target: Target) -> "LoopLine | None":
        """The line to the instance, where there is one."""
        return self._lines.get(target)

    async def line(self, target: Target) -> "LoopLine":
        """The line to the instance."""
        peer = await asyncio.to_thread(self._house.peer, target)  # it may take a moment
        found = self._lines.get(target)
        if found is None:
            for old in [old for old in self._lines if old.gone]:
                self._lines.pop(old).close()
            found = self._lines[target] = LoopLine(self._house, target, peer)
        return found

    def drop(self, target: Target) -> None:
        """The instance has gone."""
        if (line := self._lines.pop(target, None)) is not None:
            line.close()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines = {}


class LoopLine:
    """One socket, and who waits for which answer."""

    def __init__(self, house: House, target: Target, peer: Peer | None) -> None:
        self._house, self._target = house, target
        self._loop = asyncio.get_running_loop()
        self._arena = None if peer is None else house.arena
        self._mapped = None if peer is None else {peer.arena: peer.mapped}
        self._name = house.name
        self._codec = Codec()
        self._number = 0
        self._waiting: dict[int, tuple[asyncio.Future[Head], float, str]] = {}  # answer, until when, verb
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = 0.0
        self._reading = self._closed = False
        self._many = False  # more than one answer was there at once: so there will be calls to send together
        self._leaving: list[bytes] = []
        self._socket = house.connect(target)
        self._readable = [(self._socket, READABLE)]
        self._handle = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._handle, self._read)
        self._send = plain_send(self._socket)

    def is_full(self) -> bool:
        """Whether a call has to wait until another one is answered: so many are under way, or those hold all memory
        that large arrays could lie in."""
        waiting = len(self._waiting)
        return waiting >= MAX_UNDER_WAY or (waiting > 0 and self._arena is not None and self._arena.short)

    async def room(self) -> None:
        """Wait for an answer to another call."""
        if self._room is None:
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def ask(self, kind: int, verb: str, body: Any, seconds: float) -> "asyncio.Future[Head]":
        """The answer to come; Late or Lost where there is none."""
        self._number = number = self._number + 1
        said = self._codec.encode(Head(VERSION, kind, number, verb, seconds, body), self._arena, self._name)
        answer = self._loop.create_future()
        until = time.monotonic() + seconds  # a loop's clock is the monotonic one too
        self._waiting[number] = (answer, until, verb)
        if self._many and len(self._waiting) >= MANY and is_small(said):
            self._leave_soon(said[0])
        elif len(said) == 1:
            self._send(said[0], AT_ONCE)
        else:
            self._socket.send_multipart(said, AT_ONCE, copy=False)
        if until < self._next_look or self._timer is None:
            self._look_at(until)
        if not self._reading and not self._leaving:
            self._read_soon()  # ZeroMQ's descriptor tells of changes only, and sending may have taken note of one
        return answer

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._handle)
        self._socket.close()
        for number in list(self._waiting):
            self._fail(number, lost(self._target.instance.id, self._target.instance.service, self._waiting[number][2]))

    def _leave_soon(self, head: bytes) -> None:
        """Send it with those of the other callers that were answered together; of all that are under way a few only,
        so that there is always something to do on both sides."""
        self._leaving.append(head)
        if len(self._leaving) == 1:
            self._loop.call_soon(self._leave)
        elif len(self._leaving) >= min(MOST_TOGETHER, len(self._waiting) // GROUPS):
            self._leave()

    def _leave(self) -> None:
        heads, self._leaving = self._leaving, []
        if heads and not self._closed:
            self._send(together(heads), AT_ONCE)
            self._read()

    def _read(self) -> None:
        self._reading = False
        waiting = len(self._waiting)
        recv = self._socket.recv
        for _ in range(MAX_AT_ONCE):
            if self._closed or not zmq_poll(self._readable, 0):
                break
            frame = recv(AT_ONCE, copy=False)
            heard: list[Any] = [frame.bytes]
            while frame.more:
                frame = recv(copy=False)
                heard.append(frame.buffer)
            self._hear(heard)
        else:
            self._read_soon()
        if (answered := waiting - len(self._waiting)) > 0:
            self._many = answered > 1
        if self._room is not None:
            self._house.arena.short = False  # who waits tries again
            self._room.set_result(None)
            self._room = None

    def _read_soon(self) -> None:
        self._reading = True
        self._loop.call_soon(self._read)

    def _hear(self, heard: Sequence[Any]) -> None:
        try:
            if are_several(heard[0]):
                answers = self._codec.decode_several(heard[0], self._mapped)
            else:
                answers = [self._codec.decode(heard, self._mapped)]
        except WireError as error:
            if not are_several(heard[0]):
                self._fail(number_of(heard[0]) or 0, error)
                return
            for one in messages_of(heard):
                self._hear(one)
            return
        for answer in answers:
            self._answered(answer)

    def _answered(self, answer: Head) -> None:
        waiting = self._waiting.pop(answer.id, None)
        if waiting is not None and not waiting[0].done():  # its caller may have been cancelled
            waiting[0].set_result(answer)

    def _fail(self, number: int, error: SparringError) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(error)

    def _look_at(self, until: float) -> None:
        """Look at the next deadline, and at whether the instance lives every so often."""
        if self._timer is not None:
            self._timer.cancel()
        self._next_look = min(until, self._loop.time() + LOOK_S)
        self._timer = self._loop.call_at(self._next_look, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._closed or not self._waiting:
            return
        instance, now = self._target.instance, time.monotonic()
        self._read()
        lives = self._house.discovery.alive(instance)
        for number, (_, until, verb) in list(self._waiting.items()):
            if not lives:
                self._fail(number, lost(instance.id, instance.service, verb))
            elif now >= until:
                self._fail(number, late(instance.id, instance.service, verb))
        self._look_at(min((until for _, until, _ in self._waiting.values() if until > now), default=now + LOOK_S))
