"""The caller's side: connections to instances.

Each synchronous call has a connection of its own while it is under way; afterwards that is idle, and serves the next
call. The calls of an event loop are all under way on one connection to each instance.
"""

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import zmq
import zmq.backend
from zmq.backend import zmq_poll

from sparring.errors import SparringError
from sparring.services import frames
from sparring.services.discovery import Discovery, Router, Target
from sparring.services.errors import CallLost, CallTimeout, ShuttingDown, late, lost
from sparring.services.frames import CALL, MOST_TOGETHER, VERSION, Codec, Head, is_small, together
from sparring.services.shared_memory import PATIENCE_S, Arena, Mapped, introduce, socket_beside

LOOK_S = 0.25  # how often a caller that waits looks whether its instance still lives
# ZeroMQ's words as plain numbers: PyZMQ's are enumerations, which cost a microsecond for each use.
EVENTS, READABLE, NOBLOCK, MORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)
SPIN_S = 0.001  # an answer that comes within this is waited for awake
MAX_UNDER_WAY = 512  # calls of an event loop on one connection; a later one waits for the answer of another
MAX_READS = 64  # answers read before other tasks of the loop run
CLOSE_S = 0.002  # between two looks at deadlines
FULL_S = 0.1  # before ZeroMQ is offered again what it did not take
MANY, GROUPS = 16, 2  # with so many calls under way they travel together, in so many groups at least
SLEPT_CALLS = 16  # after one that did not come in that time, so many calls sleep before spinning is tried again


class Client:
    """This process to its callees: one arena, which each callee is given once, and a name for each connection."""

    def __init__(self, discovery: Discovery) -> None:
        self.discovery, self.router = discovery, Router(discovery)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.arena = Arena()
        self.name = b"\1" + os.urandom(7)  # ZeroMQ keeps names that begin with 0 for itself
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Target, AsyncConnection]] = WeakKeyDictionary()

    def peer(self, target: Target, until: float) -> Mapped | None:
        """The callee's arena; None where arrays go in frames: it is on another machine, or cannot be had by then."""
        with self._lock:
            if target.peer is None and target.instance.address.startswith("ipc://"):
                left = max(LOOK_S, min(PATIENCE_S, until - time.monotonic()))
                with suppress(OSError):  # it hangs, or has ended
                    target.peer = introduce(socket_beside(target.instance.address), self.arena, self.name, left)
            return target.peer

    def connect(self, target: Target) -> "zmq.Socket[bytes]":
        """A socket to the instance."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, frames.MAX_BYTES)
        socket.setsockopt(zmq.RCVTIMEO, int(LOOK_S * 1000))
        socket.setsockopt(zmq.SNDTIMEO, int(LOOK_S * 1000))
        socket.setsockopt(zmq.IDENTITY, self.name + next(self._numbers).to_bytes(4, "little"))
        self.discovery.connect(socket, target.instance)
        return socket

    def call(self, target: Target, kind: int, verb: str, body: Any, until: float) -> Head:
        """The answer, on an idle connection or a new one; where the call fails that is closed, since its answer might
        still come."""
        try:
            connection = target.idle.pop()
        except IndexError:
            connection = Connection(self, target, self.peer(target, until))
        try:
            answer = connection.call(kind, verb, body, until)
        except BaseException:
            connection.close()
            raise
        target.idle.append(connection)
        if target.gone:
            target.close()
        return answer

    async def call_async(self, target: Target, kind: int, verb: str, body: Any, until: float) -> Head:
        """The same in an event loop, on its connection to the instance."""
        connections = self._of_loop()
        connection = connections.get(target) or await self._open(target, until)
        while connection.is_full():
            await connection.room(verb, until)
        try:
            return await connection.begin(kind, verb, body, until)
        except CallLost:
            if connections.pop(target, None) is connection:
                connection.close()
            raise

    def close_loop(self) -> None:
        """Close the connections of the running event loop."""
        connections = self._of_loop()
        while connections:
            connections.popitem()[1].close()

    def close(self) -> None:
        self.router.close()
        self.arena.close()
        self.context.destroy(linger=0)

    def _of_loop(self) -> "dict[Target, AsyncConnection]":
        return self._loops.setdefault(asyncio.get_running_loop(), {})

    async def _open(self, target: Target, until: float) -> "AsyncConnection":
        peer = await asyncio.to_thread(self.peer, target, until)  # it may take a moment
        connections = self._of_loop()
        for old in [old for old in connections if old.gone]:
            connections.pop(old).close()
        if target not in connections:
            connections[target] = AsyncConnection(self, target, peer)
        return connections[target]


def receive(socket: "zmq.Socket[bytes]", flags: int = 0) -> list[Any]:
    """The frames of a message. The first is small: to copy it costs less than not to."""
    frame = socket.recv(flags, False)
    message: list[Any] = [frame.bytes]
    while frame.more:
        frame = socket.recv(0, False)
        message.append(frame.buffer)
    return message


def plain_send(socket: "zmq.Socket[bytes]") -> Callable[..., Any]:
    """`socket.send` of bytes, without what PyZMQ does for other kinds of sockets."""
    return partial(zmq.backend.Socket.send, socket)


class Connection:
    """A socket to one instance, and what messages on it need; for one call at a time. Arrays go through shared memory
    where there is a peer."""

    def __init__(self, client: Client, target: Target, peer: Mapped | None) -> None:
        self._client, self._target = client, target
        self._arena = None if peer is None else client.arena
        self._mapped = peer
        self._socket = client.connect(target)
        self._send = plain_send(self._socket)
        self._codec = Codec()
        self._number = 0
        self._spins, self._slept = True, 0

    def encode(self, kind: int, verb: str, body: Any, seconds: float) -> list[Any]:
        """The frames of the next message."""
        self._number += 1
        head = Head(VERSION, kind, self._number, verb, seconds, body)
        return self._codec.encode(head, self._arena, self._client.name)

    def call(self, kind: int, verb: str, body: Any, until: float) -> Head:
        """The answer. CallTimeout or CallLost where there is none; the connection is not to be used after that."""
        seconds = until - time.monotonic()
        message = self.encode(kind, verb, body, seconds)
        seconds = self._send_within(seconds, message, kind, verb)
        if self._spins:
            self._spin()
        while True:
            try:
                # For what comes within LOOK_S the time need not be known: the socket itself waits no longer.
                message = receive(self._socket) if seconds > LOOK_S else self._last(kind, verb, seconds)
            except zmq.Again:
                self._look(verb)
                seconds -= LOOK_S
                continue
            answer = self._codec.decode(message, self._mapped)
            if answer.id == self._number:
                if not self._spins:
                    self._slept += 1
                    self._spins = self._slept >= SLEPT_CALLS
                return answer

    def close(self) -> None:
        self._socket.close()

    def _send_within(self, seconds: float, message: list[Any], kind: int, verb: str) -> float:
        """Send it; how many of the seconds are left."""
        while True:
            try:
                if len(message) == 1:
                    self._send(message[0])
                else:
                    self._socket.send_multipart(message, copy=False)
                return seconds
            except zmq.Again:  # ZeroMQ takes nothing for an instance that hangs or has refused this machine's key
                self._look(verb)
                seconds -= LOOK_S
                if seconds <= 0:
                    raise self._late(kind, verb) from None

    def _spin(self) -> None:
        """Wait awake for an answer that should come at once: to sleep and be woken takes longer than such a call.
        Other threads that want the core get it; after an answer that was not so quick the next calls sleep."""
        events, end = self._socket.getsockopt, time.monotonic() + SPIN_S
        while not int(events(EVENTS)) & READABLE:
            if time.monotonic() > end:
                self._spins, self._slept = False, 0
                return
            os.sched_yield()

    def _last(self, kind: int, verb: str, seconds: float) -> list[Any]:
        """What comes before the deadline."""
        if not self._socket.poll(max(0, int(seconds * 1000)) + 1):
            self._look(verb)
            raise self._late(kind, verb)
        return receive(self._socket)

    def _late(self, kind: int, verb: str) -> CallTimeout:
        instance = self._target.instance
        return late(instance.id, instance.service, verb if kind == CALL else f"the task {verb}")

    def _look(self, verb: str) -> None:
        instance = self._target.instance
        if not self._client.discovery.alive(instance):
            raise lost(instance.id, instance.service, verb)


class AsyncConnection(Connection):
    """The same for an event loop: many calls at a time."""

    def __init__(self, client: Client, target: Target, peer: Mapped | None) -> None:
        super().__init__(client, target, peer)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[asyncio.Future[Head], float, str]] = {}  # answer, until when, verb
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = 0.0
        self._reading = self._closed = False
        self._many = False  # more than one answer was there at once: so there will be calls to send together
        self._gathered: list[bytes] = []  # small messages that are sent together soon
        self._readable = [(self._socket, READABLE)]
        self._handle = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._handle, self._read)

    def is_full(self) -> bool:
        """Whether a call has to wait until another one is answered."""
        return len(self._waiting) >= MAX_UNDER_WAY

    async def room(self, verb: str, until: float) -> None:
        """Wait for an answer to another call; CallTimeout where none comes until then."""
        if self._room is None:
            self._room = self._loop.create_future()
        try:
            await asyncio.wait_for(asyncio.shield(self._room), until - time.monotonic())
        except TimeoutError:
            raise late(self._target.instance.id, self._target.instance.service, verb) from None

    def begin(self, kind: int, verb: str, body: Any, until: float) -> "asyncio.Future[Head]":
        """The answer to come; CallTimeout or CallLost where there is none. Times are of the monotonic clock."""
        if self._closed:  # while this call waited for room
            instance = self._target.instance
            raise ShuttingDown(f"{instance.id} has ended", where=instance.service, do="Call another")
        message = self.encode(kind, verb, body, until - time.monotonic())
        answer: asyncio.Future[Head] = self._loop.create_future()
        self._waiting[self._number] = (answer, until, verb)
        if self._many and len(self._waiting) >= MANY and is_small(message):
            self._gather(message[0])
        else:
            self._send_now(self._number, message)
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

    def _send_now(self, number: int, message: list[Any]) -> None:
        """Send it, unless the call of that number is over."""
        if number not in self._waiting:
            return
        try:
            if len(message) == 1:
                self._send(message[0], NOBLOCK)
            else:
                self._socket.send_multipart(message, NOBLOCK, copy=False)
        except zmq.Again:  # the instance hangs, and ZeroMQ takes no more
            self._loop.call_later(FULL_S, self._send_now, number, message)

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
            self._send_now(self._number, [together(heads)])
            self._read()

    def _read(self) -> None:
        self._reading = False
        waiting, readable = len(self._waiting), self._readable
        for _ in range(MAX_READS):
            if self._closed or not zmq_poll(readable, 0):
                break
            self._hear(receive(self._socket, NOBLOCK))
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
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def _read_soon(self) -> None:
        """Behind those in the loop's queue: after answers were handed out, their callers have then asked again."""
        self._reading = True
        self._loop.call_soon(self._read_if_not_yet)

    def _read_if_not_yet(self) -> None:
        if self._reading:
            self._read()

    def _hear(self, message: list[Any]) -> None:
        for answer in self._codec.decode_each(message, self._mapped):
            if isinstance(answer, Head):
                waiting = self._waiting.pop(answer.id, None)
                if waiting is not None and not waiting[0].done():  # its caller may have been cancelled
                    waiting[0].set_result(answer)
            else:
                self._fail(*answer)

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
        lives = self._client.discovery.alive(instance)
        for number, (_, until, verb) in list(self._waiting.items()):
            if not lives:
                self._fail(number, lost(instance.id, instance.service, verb))
            elif now >= until:
                self._fail(number, late(instance.id, instance.service, verb))
        self._look_at(min((until for _, until, _ in self._waiting.values() if until > now), default=now + LOOK_S))
