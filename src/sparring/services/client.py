"""The caller's side of a connection: instances as this process knows them, which one a call goes to, and its socket.

A call goes to the instance that its key stays with, or else to one with the fewest calls under way. Each synchronous
call has a connection of its own while it is under way; afterwards that is idle, and serves the next call.
"""

import itertools
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zmq
import zmq.backend

from sparring.services import frames
from sparring.services.discovery import Discovery, Instance
from sparring.services.errors import late, lost
from sparring.services.fd_passing import PATIENCE_S, Peer, introduce, socket_beside
from sparring.services.frames import CALL, VERSION, Codec, Head
from sparring.services.shared_memory import Arena

FRESH_S = 0.05  # what discovery found is used for so long without another look
STICKY_KEYS = 100_000  # the longest unused are forgotten
LOOK_S = 0.25  # how often a caller that waits looks whether its instance still lives
# ZeroMQ's words as plain numbers: PyZMQ's are enumerations, which cost a microsecond for each use.
EVENTS, READABLE, NOBLOCK, MORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)
RCVMORE = int(zmq.RCVMORE)
SPIN_S = 0.001  # an answer that comes within this is waited for awake
SLEPT_CALLS = 16  # after one that did not come in that time, so many calls sleep before spinning is tried again


class Target:
    """An instance, and what is known of it here."""

    __slots__ = ("calls", "gone", "idle", "instance", "introduced", "peer")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        # Under way from here: from the choice on, so that calls that begin together are spread. A list that threads
        # lengthen and shorten by one needs no lock, and its length is the number.
        self.calls: list[None] = []
        self.idle: list[Connection] = []
        self.introduced, self.peer = False, None  # type: bool, Peer | None
        self.gone = False

    def close(self) -> None:
        """It is gone, or we are: it holds nothing of ours any more."""
        self.gone = True
        while self.idle:
            self.idle.pop().close()
        if self.peer is not None:
            self.peer.close()
            self.peer = None


class Router:
    """Chooses an instance for each call. Threads may share one. A target that is found no more is closed."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._round_robin = random.randrange(1 << 16)
        self._found: dict[str, tuple[float, tuple[Target, ...]]] = {}  # service → until when it is fresh, who
        self._targets: dict[tuple[str, str, str], Target] = {}  # by service, id and address
        self._sticky: OrderedDict[tuple[str, str], str] = OrderedDict()  # (service, key) → instance
        self._lock = threading.Lock()

    def choose(self, service: str, key: str | None, refused: Sequence[str], now: float) -> Target | None:
        """Where a call goes now; None where no instance is there, apart from the `refused`. It counts until `done`."""
        found = self._found.get(service)
        there = found[1] if found is not None and now < found[0] else self._look(service, now)
        if refused:
            there = tuple(one for one in there if one.instance.id not in refused)
        if not there:
            return None
        with self._lock:
            chosen = there[0] if key is None and len(there) == 1 else self._choose(service, key, there)
            chosen.calls.append(None)
        return chosen

    def done(self, target: Target) -> None:
        """A call that was sent there is over, however it ended."""
        target.calls.pop()

    def look_again(self, service: str) -> None:
        """Something there is not as it was found."""
        self._found.pop(service, None)

    def close(self) -> None:
        with self._lock:
            targets, self._targets, self._found = self._targets, {}, {}
        for target in targets.values():
            target.close()

    def _choose(self, service: str, key: str | None, there: Sequence[Target]) -> Target:
        sticky = None if key is None else self._sticky.get((service, key))
        chosen = next((one for one in there if one.instance.id == sticky), None)
        if chosen is None:
            least = min(len(one.calls) for one in there)
            equals = [one for one in there if len(one.calls) == least] or there
            self._round_robin += 1
            chosen = equals[self._round_robin % len(equals)]
        if key is not None:
            self._sticky[service, key] = chosen.instance.id
            self._sticky.move_to_end((service, key))
            if len(self._sticky) > STICKY_KEYS:
                self._sticky.popitem(last=False)
        return chosen

    def _look(self, service: str, now: float) -> tuple[Target, ...]:
        live = [one for one in self._discovery.instances(service) if self._discovery.alive(one)]
        with self._lock:
            places = {(service, one.id, one.address): one for one in live}
            there = tuple(self._targets.setdefault(place, Target(one)) for place, one in places.items())
            left = [place for place in self._targets if place[0] == service and place not in places]
            gone = [self._targets.pop(place) for place in left]
            if there:
                self._found[service] = (now + FRESH_S, there)
            else:
                self._found.pop(service, None)
        for target in gone:
            target.close()
        return there


class ClientContext:
    """This process to its callees: one arena, which each callee is given once, and a name for each connection."""

    def __init__(self, discovery: Discovery) -> None:
        self.discovery = discovery
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.arena = Arena()
        self.name = b"\1" + os.urandom(7)  # ZeroMQ keeps names that begin with 0 for itself
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def peer(self, target: Target, until: float) -> Peer | None:
        """The callee's arena; None where arrays go in frames: it is on another machine, or cannot be had by then."""
        with self._lock:
            if not target.introduced and target.instance.address.startswith("ipc://"):
                left = max(LOOK_S, min(PATIENCE_S, until - time.monotonic()))
                try:
                    target.peer = introduce(socket_beside(target.instance.address), self.arena, self.name, left)
                except TimeoutError:
                    return None  # it hangs: try again at the next call
                except OSError:
                    pass
            target.introduced = True
            return target.peer

    def connect(self, target: Target) -> "zmq.Socket[bytes]":
        """A socket to the instance."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, frames.MAX_BYTES)
        socket.setsockopt(zmq.RCVTIMEO, int(LOOK_S * 1000))
        socket.setsockopt(zmq.IDENTITY, self.name + next(self._numbers).to_bytes(4, "little"))
        self.discovery.connect(socket, target.instance)
        return socket

    def close(self) -> None:
        self.arena.close()
        self.context.destroy(linger=0)


def plain_send(socket: "zmq.Socket[bytes]") -> Callable[..., Any]:
    """`socket.send` of bytes, without what PyZMQ does for other kinds of sockets."""
    return partial(zmq.backend.Socket.send, socket)


class Connection:
    """A socket to one instance, and what messages on it need: for one call at a time here, for many in async_client.
    Arrays go through shared memory where there is a peer."""

    def __init__(self, context: ClientContext, target: Target, peer: Peer | None) -> None:
        self._context, self._target = context, target
        self._arena = None if peer is None else context.arena
        self._mapped = None if peer is None else {peer.arena: peer.mapped}
        self._socket = context.connect(target)
        self._send, self._recv = plain_send(self._socket), self._socket.recv
        self._codec = Codec()
        self._number = 0
        self._spins, self._slept = True, 0

    def encode(self, kind: int, verb: str, body: Any, seconds: float) -> list[Any]:
        """The frames of the next message."""
        self._number += 1
        head = Head(VERSION, kind, self._number, verb, seconds, body)
        return self._codec.encode(head, self._arena, self._context.name)

    def call(self, kind: int, verb: str, body: Any, until: float) -> Head:
        """The answer. CallTimeout or CallLost where there is none; the connection is not to be used after that."""
        seconds = until - time.monotonic()
        message = self.encode(kind, verb, body, seconds)
        if len(message) == 1:
            self._send(message[0])
        else:
            self._socket.send_multipart(message, copy=False)
        if self._spins:
            self._spin()
        while True:
            try:
                # For what comes within LOOK_S the time need not be known: the socket itself waits no longer.
                message = self._receive() if seconds > LOOK_S else self._last(kind, verb, seconds)
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

    def _spin(self) -> None:
        """Wait awake for an answer that should come at once: to sleep and be woken takes longer than such a call.
        Other threads that want the core get it; after an answer that was not so quick the next calls sleep."""
        events, end = self._socket.getsockopt, time.monotonic() + SPIN_S
        while not int(events(EVENTS)) & READABLE:
            if time.monotonic() > end:
                self._spins, self._slept = False, 0
                return
            os.sched_yield()

    def _receive(self, flags: int = 0) -> list[Any]:
        """The frames of a message; arrays are not copied."""
        message: list[Any] = [self._recv(flags)]
        while self._socket.getsockopt(RCVMORE):
            message.append(self._recv(copy=False).buffer)
        return message

    def _last(self, kind: int, verb: str, seconds: float) -> list[Any]:
        """What comes before the deadline."""
        if not self._socket.poll(max(0, int(seconds * 1000)) + 1):
            self._look(verb)
            instance = self._target.instance
            raise late(instance.id, instance.service, verb if kind == CALL else f"the task {verb}")
        return self._receive()

    def _look(self, verb: str) -> None:
        instance = self._target.instance
        if not self._context.discovery.alive(instance):
            raise lost(instance.id, instance.service, verb)
