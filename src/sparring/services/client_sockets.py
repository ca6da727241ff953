"""The caller's sockets: what all lines to an instance share, and a thread's own line to it."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import finalize

import zmq
import zmq.backend

from sparring.services import frames
from sparring.services.discovery import Discovery
from sparring.services.errors import late, lost
from sparring.services.fd_passing import PATIENCE_S, Peer, beside, introduce
from sparring.services.frames import CALL, VERSION, Codec, Head
from sparring.services.router import Target
from sparring.services.shared_memory import Arena

LOOK_S = 0.25  # how often a caller that waits looks whether its instance still lives
# ZeroMQ's words as plain numbers: PyZMQ's are enumerations, which cost a microsecond for each use.
EVENTS, READABLE, AT_ONCE, MORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)
SPIN_S = 0.001  # an answer that comes within this is waited for awake
SLEPT_CALLS = 16  # after one that did not come, so many are slept for before it is tried again


def plain_send(socket: "zmq.Socket[bytes]") -> Callable[..., Any]:
    """`socket.send` of bytes, without what PyZMQ does for other kinds of sockets."""
    return partial(zmq.backend.Socket.send, socket)


class TrailingFrames:
    """The frames behind the first one of a message, taken from the socket as they are looked up, in their order; not
    copied. Of a message that was understood all have been looked up; what is left of another one is skipped."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._taken = 0

    def __getitem__(self, number: int) -> Any:
        more = self._taken < number <= frames.MAX_ARRAYS and self._socket.getsockopt(zmq.RCVMORE)
        if not more or number != self._taken + 1:
            raise LookupError(f"there is no array {number}")
        frame = self._socket.recv(copy=False)
        self._taken = number if frame.more else 0
        return frame.buffer

    def skip(self) -> None:
        """Until the next message begins."""
        self._taken = 0
        while self._socket.getsockopt(zmq.RCVMORE):
            self._socket.recv()


class ClientContext:
    """This process to its callees: one arena, which each callee is given once, and a name for each line."""

    def __init__(self, discovery: Discovery) -> None:
        self.discovery = discovery
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.arena = Arena()
        self.name = b"\1" + os.urandom(7)  # ZeroMQ keeps names that begin with 0 for itself
        self._lines = itertools.count(1)
        self._peers: dict[Target, Peer | None] = {}
        self._lock = threading.Lock()

    def peer(self, target: Target, until: float) -> Peer | None:
        """The callee's arena; None where arrays go in frames: it is on another machine, or cannot be had by then."""
        with self._lock:
            if target not in self._peers:
                self._forget([one for one in self._peers if one.gone])
                peer = None
                if target.instance.address.startswith("ipc://"):
                    left = max(LOOK_S, min(PATIENCE_S, until - time.monotonic()))
                    try:
                        peer = introduce(beside(target.instance.address), self.arena, self.name, left)
                    except TimeoutError:
                        return None  # it hangs: another time, perhaps
                    except OSError:
                        pass
                self._peers[target] = peer
            return self._peers[target]

    def connect(self, target: Target) -> "zmq.Socket[bytes]":
        """A socket to the instance."""
        line = self.context.socket(zmq.DEALER)
        line.setsockopt(zmq.LINGER, 0)
        line.setsockopt(zmq.MAXMSGSIZE, frames.MAX_BYTES)
        line.setsockopt(zmq.RCVTIMEO, int(LOOK_S * 1000))
        line.setsockopt(zmq.IDENTITY, self.name + next(self._lines).to_bytes(4, "little"))
        self.discovery.connect(line, target.instance)
        return line

    def dead(self, target: Target) -> None:
        """It holds nothing of ours any more."""
        with self._lock:
            target.gone = True
            self._forget([target])

    def close(self) -> None:
        with self._lock:
            self._forget(list(self._peers))
        self.arena.close()
        self.context.destroy(linger=0)

    def _forget(self, targets: Sequence[Target]) -> None:
        for target in targets:
            peer = self._peers.pop(target, None)
            if peer is not None:
                peer.close()


class Connection:
    """One thread's socket to one instance, one call at a time."""

    def __init__(self, house: ClientContext, target: Target, until: float) -> None:
        self._house, self._target = house, target
        peer = house.peer(target, until)
        self._arena = None if peer is None else house.arena
        self._mapped = None if peer is None else {peer.arena: peer.mapped}
        self._name = house.name
        self._socket = house.connect(target)
        self._send, self._recv = plain_send(self._socket), self._socket.recv
        self._behind = TrailingFrames(self._socket)
        self._codec = Codec()
        self._number = 0
        self._soon, self._slept = True, 0

    def ask(self, kind: int, verb: str, body: Any, until: float) -> Head:
        """The answer. Late or Lost where there is none; the line is not to be used after that."""
        seconds = until - time.monotonic()
        self._number = number = self._number + 1
        said = self._codec.encode(Head(VERSION, kind, number, verb, seconds, body), self._arena, self._name)
        if len(said) == 1:
            self._send(said[0])
        else:
            self._socket.send_multipart(said, copy=False)
        if self._soon:
            self._spin()
        while True:
            try:
                # What comes within LOOK_S need not know the time: the socket itself waits no longer.
                first = self._recv() if seconds > LOOK_S else self._last(kind, verb, seconds)
            except zmq.Again:
                self._look(verb)
                seconds -= LOOK_S
                continue
            answer = self._codec.decode_first(first, self._behind, self._mapped)
            if answer.id == number:
                if not self._soon:
                    self._slept += 1
                    self._soon = self._slept >= SLEPT_CALLS
                return answer

    def _spin(self) -> None:
        """Wait awake for an answer that should come at once: to sleep and be woken takes longer than such a call.
        Others who want the core get it; after an answer that was not so quick the next ones are slept for."""
        events, end = self._socket.getsockopt, time.monotonic() + SPIN_S
        while not int(events(EVENTS)) & READABLE:
            if time.monotonic() > end:
                self._soon, self._slept = False, 0
                return
            os.sched_yield()

    def close(self) -> None:
        self._socket.close()

    def _last(self, kind: int, verb: str, seconds: float) -> bytes:
        """What comes before the deadline."""
        if not self._socket.poll(max(0, int(seconds * 1000)) + 1):
            self._look(verb)
            instance = self._target.instance
            raise late(instance.id, instance.service, verb if kind == CALL else f"the task {verb}")
        return self._recv()

    def _look(self, verb: str) -> None:
        instance = self._target.instance
        if not self._house.discovery.alive(instance):
            raise lost(instance.id, instance.service, verb)


class Connections:
    """Each thread's own lines. Those of a thread that has ended are closed, as are those to instances that have."""

    def __init__(self, house: ClientContext) -> None:
        self._house = house
        self._of_thread = threading.local()
        self._all: set[Connection] = set()
        self._lock = threading.Lock()

    def line(self, target: Target, until: float) -> Connection:
        """This thread's line to the instance."""
        try:
            found: Connection = self._of_thread.lines[target]
        except (AttributeError, KeyError):
            found = self._add(target, until)
        return found

    def drop(self, target: Target) -> None:
        """A call on it went wrong: its answer might still come."""
        found = self._of_thread.lines.pop(target, None)
        if found is not None:
            self._of_thread.lines.opened.discard(found)
            self._close([found])

    def close(self) -> None:
        with self._lock:
            lines = list(self._all)
        self._close(lines)
        self._of_thread = threading.local()

    def _add(self, target: Target, until: float) -> Connection:
        mine: _Mine | None = getattr(self._of_thread, "lines", None)
        if mine is None:
            mine = self._of_thread.lines = _Mine()
            finalize(mine, self._close, mine.opened)
        for old in [old for old in mine if old.gone]:
            self.drop(old)
        line = mine[target] = Connection(self._house, target, until)
        mine.opened.add(line)
        with self._lock:
            self._all.add(line)
        return line

    def _close(self, lines: "set[Connection] | list[Connection]") -> None:
        with self._lock:
            self._all.difference_update(lines)
        for line in list(lines):
            line.close()


class _Mine(dict[Target, Connection]):
    """A thread's lines by instance; goes with the thread."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: set[Connection] = set()  # outlives it by a moment
