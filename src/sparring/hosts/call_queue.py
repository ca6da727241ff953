"""Calls to one instance on this machine, through its restarts: in order, many under way, each answered or lost."""

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any

import numpy as np
import zmq

from sparring.errors import SparringError
from sparring.services import frames
from sparring.services.errors import Overloaded, ShuttingDown, error_of, gone, late, lost
from sparring.services.frames import CALL, ERROR, Head, codec
from sparring.services.shared_memory import Arena, Mapped, introduce, socket_beside

DEADLINE_S = 30.0  # of a caller that names none
WORK_S = 3600.0  # an instance works on a call for so long; how long a caller waits for it is the caller's choice
MAX_UNDER_WAY = 4096  # calls to one instance that are not answered yet
PAUSE_S = 0.01  # before a call that found its verb's queue full is sent again


class PendingCall(Future[Any]):
    """An answer under way: a Pending. The host's thread settles it."""

    def __init__(self, who: str, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """What it is given is copied now, so that its caller may change it."""
        super().__init__()
        self.who, self.verb, self.number, self.here = who, verb, 0, True
        self.args: list[Any] = snapshot(args)
        self.named: dict[str, Any] = snapshot(named)

    def result(self, seconds: float | None = None) -> Any:
        patience = DEADLINE_S if seconds is None else seconds
        try:
            return super().result(patience)
        except TimeoutError:
            raise late(self.who, self.who, self.verb, patience) from None

    def may_begin(self) -> bool:
        """Whether all answers that it is given as arguments are there."""
        return all(one.done() for one in (*self.args, *self.named.values()) if isinstance(one, PendingCall))


def _value(argument: Any) -> Any:
    """An answer in its place; the error of one that failed is that of the call."""
    return argument.result() if isinstance(argument, PendingCall) else argument


def snapshot(tree: Any) -> Any:
    """The same, with arrays of its own: the caller may change theirs."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, dict):
        return {name: snapshot(one) for name, one in tree.items()}
    if isinstance(tree, list | tuple):
        return [snapshot(one) for one in tree]
    return tree


class CallQueue:
    """`put` may be called by any thread; all else is the host's thread's."""

    def __init__(
        self,
        who: str,
        idempotent: frozenset[str],
        arena: Arena,
        context: "zmq.Context[zmq.Socket[bytes]]",
        settle: Callable[[PendingCall, Any, SparringError | None], None],
    ) -> None:
        """Verbs that are `idempotent` may be called twice."""
        self.who, self._idempotent, self._arena = who, idempotent, arena
        self._context, self._settle = context, settle
        self.socket: zmq.Socket[bytes] | None = None
        self._peer: Mapped | None = None  # its arena
        self._name = b""  # ours, among the callers of its process
        self._queue: deque[PendingCall] = deque()  # bounded by MAX_UNDER_WAY, as is what is out
        self._out: dict[int, PendingCall] = {}
        self._paused: list[tuple[float, PendingCall]] = []
        self._number = 0
        self._gone = ""
        self._under_way = 0  # calls that were put and not settled: one that moves between queues is in none of them
        self._lock = Lock()

    def put(self, call: PendingCall) -> None:
        """Queue a call."""
        with self._lock:
            if self._gone:
                call.set_exception(gone(self.who, self._gone))
                return
            if self._under_way >= MAX_UNDER_WAY:
                raise Overloaded(f"{MAX_UNDER_WAY} calls are under way", where=self.who, do="Take their results first")
            self._under_way += 1
            self._number += 1
            call.number = self._number
            call.add_done_callback(self._ended)
            self._queue.append(call)

    def _ended(self, call: object) -> None:
        with self._lock:
            self._under_way -= 1

    def connect(self, address: str) -> None:
        """Its process can be called."""
        self._name = b"\1" + np.random.default_rng().bytes(7)  # ZeroMQ keeps names that begin with 0 for itself
        peer = introduce(socket_beside(address), self._arena, self._name)
        connection = self._context.socket(zmq.DEALER)
        connection.setsockopt(zmq.LINGER, 0)
        connection.setsockopt(zmq.SNDHWM, 0)  # what is under way is bounded here
        connection.setsockopt(zmq.RCVHWM, 0)
        connection.setsockopt(zmq.IDENTITY, self._name)
        connection.connect(address)
        self.socket, self._peer = connection, peer

    def disconnect(self, why: str) -> None:
        """Its process has ended: what is idempotent waits for the next one, the rest is lost."""
        with self._lock:
            if self.socket is not None and self._peer is not None:
                self.socket.close()
                self._arena.forget(self._name)
                self._peer.close()
            self.socket = self._peer = None
            again = [one for one in self._out.values() if one.verb in self._idempotent]
            dead = [one for one in self._out.values() if one.verb not in self._idempotent]
            self._queue.extendleft(reversed(again))
            self._out = {}
        for one in dead:
            self._settle(one, None, lost(self.who, self.who, one.verb, why))

    def end(self, why: str) -> None:
        """There is no next process: no call that waits, or comes, is answered."""
        with self._lock:
            self._gone = why
        self.disconnect(why)
        self.flush(math.inf)  # those that paused, too

    def flush(self, now: float) -> None:
        """Send what can be sent, in its order."""
        if self._paused and now >= self._paused[0][0]:
            with self._lock:
                self._queue.extendleft(one for due, one in reversed(self._paused) if due <= now)
                self._paused = [(due, one) for due, one in self._paused if due > now]
        while self._queue and (self._gone or (self.socket is not None and self._queue[0].may_begin())):
            with self._lock:
                call = self._queue.popleft()
            try:
                if self._gone:
                    raise gone(self.who, self._gone)
                self._send(call)
            except SparringError as error:
                self._settle(call, None, error)

    def due(self) -> float | None:
        """When a call that paused is sent again."""
        return self._paused[0][0] if self._paused else None

    def receive(self, now: float) -> None:
        """Take in all answers that are there."""
        assert self.socket is not None
        assert self._peer is not None
        while True:
            try:
                said = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            for answer in codec().decode_each([frame.buffer for frame in said], self._peer):
                if isinstance(answer, Head) and (call := self._out.pop(answer.id, None)) is not None:
                    self._answered(call, answer, now)

    def _answered(self, call: PendingCall, answer: Head, now: float) -> None:
        error = error_of(answer.body) if answer.kind == ERROR else None
        if isinstance(error, Overloaded) and error.limit == "wait":
            self._paused.append((now + PAUSE_S, call))
            return
        if isinstance(error, ShuttingDown):  # of this instance there is no other one to ask
            error = lost(self.who, self.who, call.verb, error.wrong)
        self._settle(call, None if error else answer.body, error)

    def _send(self, call: PendingCall) -> None:
        assert self.socket is not None
        args = [_value(one) for one in call.args]
        named = {name: _value(one) for name, one in call.named.items()}
        head = Head(frames.VERSION, CALL, call.number, call.verb, WORK_S, [args, named])
        message = codec().encode(head, self._arena, self._name)
        self._out[call.number] = call
        self.socket.send_multipart(message, copy=False)
