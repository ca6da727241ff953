"""The same calls for programs in an event loop: many under way on one socket to each instance."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import zmq
from zmq.backend import zmq_poll

from sparring.errors import SparringError, WireError
from sparring.services.client import LOOK_S, NOBLOCK, READABLE, ClientContext, Connection, Target
from sparring.services.errors import ShuttingDown, late, lost
from sparring.services.fd_passing import Peer
from sparring.services.frames import (
    MOST_TOGETHER,
    Head,
    is_small,
    messages_of,
    number_of,
    together,
)

MAX_UNDER_WAY = 512  # calls on one connection; a later one waits for the answer of another
MAX_READS = 64  # answers read before other tasks of the loop run
CLOSE_S = 0.002  # between two looks at deadlines
MANY, GROUPS = 16, 2  # with so many calls under way they travel together, in so many groups at least


class AsyncConnections:
    """The connections of one event loop."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._connections: dict[Target, AsyncConnection] = {}

    async def get(self, target: Target, until: float) -> "AsyncConnection":
        """The connection to the instance."""
        found = self._connections.get(target)
        if found is None:
            peer = await asyncio.to_thread(self._context.peer, target, until)  # it may take a moment
            for old in [old for old in self._connections if old.gone]:
                self.drop(old)
            found = self._connections.get(target)
            if found is None:
                found = self._connections[target] = AsyncConnection(self._context, target, peer)
        return found

    def drop(self, target: Target) -> None:
        """The instance has gone."""
        if (connection := self._connections.pop(target, None)) is not None:
            connection.close()

    def close(self) -> None:
        for target in list(self._connections):
            self.drop(target)


class AsyncConnection(Connection):
    """One socket, and the calls that wait for an answer."""

    def __init__(self, context: ClientContext, target: Target, peer: Peer | None) -> None:
        super().__init__(context, target, peer)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[asyncio.Future[Head], float, str]] = {}  # answer, until when, verb
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = 0.0
        self._reading = self._closed = False
        self._many = False  # more than one answer was there at once: so there will be calls to send together
        self._gathered: list[bytes] = []  # small messages that are sent together soon
        self._unsent: list[list[Any]] = []  # the instance hangs, and ZeroMQ took no more
        self._readable = [(self._socket, READABLE)]
        self._handle = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._handle, self._read)

    def is_full(self) -> bool:
        """Whether a call has to wait until another one is answered: so many are under way, or those hold all memory
        that large arrays could lie in; or until the instance, which hangs, takes more."""
        waiting = len(self._waiting)
        if waiting >= MAX_UNDER_WAY or self._unsent:
            return True
        return waiting > 0 and self._arena is not None and self._arena.short

    async def room(self, verb: str, until: float) -> None:
        """Wait for an answer to another call; CallTimeout where none comes until then."""
        if self._room is None:
            self._room = self._loop.create_future()
        try:
            await asyncio.wait_for(asyncio.shield(self._room), until - time.monotonic())
        except TimeoutError:
            raise late(self._target.instance.id, self._target.instance.service, verb) from None

    def begin(self, kind: int, verb: str, body: Any, now: float, until: float) -> "asyncio.Future[Head]":
        """The answer to come; CallTimeout or CallLost where there is none. Times are of the monotonic clock."""
        if self._closed:  # while this call waited for room
            instance = self._target.instance
            raise ShuttingDown(f"{instance.id} has ended", where=instance.service, do="Call another")
        message = self.encode(kind, verb, body, until - now)
        answer: asyncio.Future[Head] = self._loop.create_future()
        self._waiting[self._number] = (answer, until, verb)
        if self._many and len(self._waiting) >= MANY and is_small(message):
            self._gather(message[0])
        else:
            self._send_now(message)
        if until < self._next_look or self._timer is None:
            self._look_at(until)
        if not self._reading and not self._gathered:
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

    def _send_now(self, message: list[Any]) -> None:
        try:
            if len(message) == 1:
                self._send(message[0], NOBLOCK)
            else:
                self._socket.send_multipart(message, NOBLOCK, copy=False)
        except zmq.Again:
            self._unsent.append(message)

    def _gather(self, head: bytes) -> None:
        """Send it with those of the other callers that were answered together; of all that are under way a few only,
        so that there is always something to do on both sides."""
        self._gathered.append(head)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._send_gathered)
        elif len(self._gathered) >= min(MOST_TOGETHER, len(self._waiting) // GROUPS):
            self._send_gathered()

    def _send_gathered(self) -> None:
        if self._gathered and not self._closed:
            heads, self._gathered = self._gathered, []
            self._send_now([together(heads)])
            self._read()

    def _read(self) -> None:
        self._reading = False
        if self._unsent and not self._closed:
            self._send_unsent()
        waiting, readable = len(self._waiting), self._readable
        for _ in range(MAX_READS):
            if self._closed or not zmq_poll(readable, 0):
                break
            self._hear(self._receive(NOBLOCK))
        else:
            self._read_soon()
        if (answered := waiting - len(self._waiting)) > 0:
            self._many = answered > 1
            if not self._reading and not (self._many and waiting >= MANY):
                self._read_soon()
        if self._room is not None:
            self._let_in()

    def _let_in(self) -> None:
        """Calls that wait for room try again."""
        self._context.arena.short = False
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def _send_unsent(self) -> None:
        with suppress(zmq.Again):
            while self._unsent:
                self._socket.send_multipart(self._unsent[0], NOBLOCK, copy=False)
                del self._unsent[0]

    def _read_soon(self) -> None:
        """Behind those in the loop's queue: after answers were handed out, their callers have then asked again."""
        self._reading = True
        self._loop.call_soon(self._read_if_not_yet)

    def _read_if_not_yet(self) -> None:
        if self._reading:
            self._read()

    def _hear(self, message: list[Any]) -> None:
        for one in messages_of(message):
            try:
                answer = self._codec.decode(one, self._mapped)
            except WireError as error:
                self._fail(number_of(one[0]) or 0, error)
            else:
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
        self._timer = self._loop.call_at(self._next_look, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._closed or not self._waiting:
            return
        instance, now = self._target.instance, time.monotonic()
        self._read()
        lives = self._context.discovery.alive(instance)
        for number, (_, until, verb) in list(self._waiting.items()):
            if not lives:
                self._fail(number, lost(instance.id, instance.service, verb))
            elif now >= until:
                self._fail(number, late(instance.id, instance.service, verb))
        self._look_at(min((until for _, until, _ in self._waiting.values() if until > now), default=now + LOOK_S))
