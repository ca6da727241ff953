"""The same calls for programs that live in an event loop: many under way on one socket to each instance."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import zmq
from zmq.backend import zmq_poll

from sparring.errors import SparringError, WireError
from sparring.services.client_sockets import AT_ONCE, LOOK_S, READABLE, ClientContext, TrailingFrames, plain_send
from sparring.services.errors import ShuttingDown, late, lost
from sparring.services.fd_passing import Peer
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
from sparring.services.router import Target

MAX_UNDER_WAY = 512  # calls on one line; who comes later waits for the answer of another
MAX_AT_ONCE = 64  # answers read before others in the loop have their turn
CLOSE_S = 0.002  # between two looks at deadlines
MANY, GROUPS = 16, 2  # with so many calls under way they travel together, in so many groups at least


class AsyncConnections:
    """Sockets of one event loop."""

    def __init__(self, house: ClientContext) -> None:
        self._house = house
        self._lines: dict[Target, AsyncConnection] = {}

    def known(self, target: Target) -> "AsyncConnection | None":
        """The line to the instance, where there is one."""
        return self._lines.get(target)

    async def line(self, target: Target, until: float) -> "AsyncConnection":
        """The line to the instance."""
        peer = await asyncio.to_thread(self._house.peer, target, until)  # it may take a moment
        found = self._lines.get(target)
        if found is None:
            for old in [old for old in self._lines if old.gone]:
                self._lines.pop(old).close()
            found = self._lines[target] = AsyncConnection(self._house, target, peer)
        return found

    def drop(self, target: Target) -> None:
        """The instance has gone."""
        if (line := self._lines.pop(target, None)) is not None:
            line.close()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines = {}


class AsyncConnection:
    """One socket, and who waits for which answer."""

    def __init__(self, house: ClientContext, target: Target, peer: Peer | None) -> None:
        self._house, self._target = house, target
        self._loop = asyncio.get_running_loop()
        self._arena = None if peer is None else house.arena
        self._mapped = None if peer is None else {peer.arena: peer.mapped}
        self._name = house.name
        self._codec = Codec()
        self._future = self._loop.create_future
        self._number = 0
        self._waiting: dict[int, tuple[asyncio.Future[Head], float, str]] = {}  # answer, until when, verb
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = 0.0
        self._reading = self._closed = False
        self._many = False  # more than one answer was there at once: so there will be calls to send together
        self._leaving: list[bytes] = []
        self._unsent: list[list[Any]] = []  # it hangs, and ZeroMQ took no more; nobody asks meanwhile, so they are few
        self._socket = house.connect(target)
        self._readable = [(self._socket, READABLE)]
        self._handle = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._handle, self._read)
        self._send, self._recv = plain_send(self._socket), self._socket.recv
        self._behind = TrailingFrames(self._socket)

    def is_full(self) -> bool:
        """Whether a call has to wait until another one is answered: so many are under way, or those hold all memory
        that large arrays could lie in; or until the instance, which hangs, takes more."""
        waiting = len(self._waiting)
        if waiting >= MAX_UNDER_WAY or self._unsent:
            return True
        return waiting > 0 and self._arena is not None and self._arena.short

    async def room(self, verb: str, until: float) -> None:
        """Wait for an answer to another call; Late where none comes until then."""
        if self._room is None:
            self._room = self._loop.create_future()
        try:
            await asyncio.wait_for(asyncio.shield(self._room), until - time.monotonic())
        except TimeoutError:
            raise late(self._target.instance.id, self._target.instance.service, verb) from None

    def ask(self, kind: int, verb: str, body: Any, now: float, until: float) -> "asyncio.Future[Head]":
        """The answer to come; Late or Lost where there is none. Times are of the monotonic clock, as the loop's are."""
        if self._closed:  # while this call waited for room
            raise ShuttingDown(
                f"{self._target.instance.id} has ended", where=self._target.instance.service, do="Ask another"
            )
        self._number = number = self._number + 1
        said = self._codec.encode(Head(VERSION, kind, number, verb, until - now, body), self._arena, self._name)
        answer = self._future()
        waiting = self._waiting
        waiting[number] = (answer, until, verb)
        try:
            if self._many and len(waiting) >= MANY and is_small(said):
                self._leave_soon(said[0])
            elif len(said) == 1:
                self._send(said[0], AT_ONCE)
            else:
                self._socket.send_multipart(said, AT_ONCE, copy=False)
        except zmq.Again:
            self._unsent.append(said)
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
        self._let_in()

    def _leave_soon(self, head: bytes) -> None:
        """Send it with those of the other callers that were answered together; of all that are under way a few only,
        so that there is always something to do on both sides."""
        self._leaving.append(head)
        if len(self._leaving) == 1:
            self._loop.call_soon(self._leave)
        elif len(self._leaving) >= min(MOST_TOGETHER, len(self._waiting) // GROUPS):
            self._leave()

    def _leave(self) -> None:
        if not self._leaving or self._closed:
            return
        heads, self._leaving = self._leaving, []
        several = together(heads)
        try:
            self._send(several, AT_ONCE)
        except zmq.Again:
            self._unsent.append([several])
        self._read()

    def _read(self) -> None:
        self._reading = False
        if self._unsent and not self._closed:
            self._send_unsent()
        waiting, recv, readable = len(self._waiting), self._recv, self._readable
        for _ in range(MAX_AT_ONCE):
            if self._closed or not zmq_poll(readable, 0):
                break
            self._hear(recv(AT_ONCE))
        else:
            self._read_soon()
        if (answered := waiting - len(self._waiting)) > 0:
            self._many = answered > 1
            if not self._reading and not (self._many and waiting >= MANY):
                self._read_soon()
        if self._room is not None:
            self._let_in()

    def _let_in(self) -> None:
        """Who waits for room tries again."""
        self._house.arena.short = False
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def _send_unsent(self) -> None:
        with suppress(zmq.Again):
            while self._unsent:
                self._socket.send_multipart(self._unsent[0], AT_ONCE, copy=False)
                del self._unsent[0]

    def _read_soon(self) -> None:
        """Behind those in the loop's queue: after answers were handed out, their callers have then asked again."""
        self._reading = True
        self._loop.call_soon(self._read_if_not_yet)

    def _read_if_not_yet(self) -> None:
        if self._reading:
            self._read()

    def _hear(self, first: bytes) -> None:
        if are_several(first):
            self._hear_several(first)
            return
        try:
            answer = self._codec.decode_first(first, self._behind, self._mapped)
        except WireError as error:
            self._behind.skip()
            self._fail(number_of(first) or 0, error)
        else:
            self._answered(answer)

    def _hear_several(self, first: bytes) -> None:
        try:
            answers = self._codec.decode_several(first, self._mapped)
        except WireError:  # the others are sound, perhaps
            for one in messages_of([first]):
                self._hear(one[0])
        else:
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
        """Look at the next deadline, and at those close to it; and at whether the instance lives every so often."""
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time()
        self._next_look = min(max(until, now + CLOSE_S), now + LOOK_S)
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
