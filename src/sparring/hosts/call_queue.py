"""Calls to one instance on this machine, through its restarts: in order, many under way, each answered or lost."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Condition, Lock
from typing import Any

import numpy as np
import zmq

from sparring.errors import SparringError, WireError
from sparring.hosts.worker import Ready
from sparring.services import frames
from sparring.services.errors import Overloaded, ShuttingDown, error_of, gone, late, lost
from sparring.services.fd_passing import Peer, introduce, socket_beside
from sparring.services.frames import ERROR, Head, codec, messages_of
from sparring.services.shared_memory import Arena

WORK_S = 3600.0  # an instance works on a call for so long; how long a caller waits for it is the caller's choice
MAX_UNDER_WAY = 4096  # calls to one instance that are not answered yet
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05  # before a call that found the queue full is sent again


class PendingCall:
    """An answer under way: a Pending. It is settled once, by the host's thread, which wakes all that wait."""

    __slots__ = ("_deadline_s", "_news", "args", "error", "here", "kind", "named", "number", "over", "pauses", "value",
                 "verb", "who")  # fmt: skip

    def __init__(self, kind: int, who: str, verb: str, news: Condition, deadline_s: float) -> None:
        self.kind, self.who, self.verb = kind, who, verb
        self._news, self._deadline_s = news, deadline_s
        self.args: list[Any] = []
        self.named: dict[str, Any] = {}
        self.number = self.pauses = 0
        self.over, self.here = False, True
        self.value: Any = None
        self.error: SparringError | None = None

    def done(self) -> bool:
        return self.over

    def result(self, seconds: float | None = None) -> Any:
        patience = self._deadline_s if seconds is None else seconds
        if not self.over:
            with self._news:
                self._news.wait_for(lambda: self.over, patience)
        if not self.over:
            raise late(self.who, self.who, self.verb, patience)
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self.value

    def waits_for(self) -> Iterator["PendingCall"]:
        """The answers that it is given as arguments and that are not there yet."""
        return (one for one in (*self.args, *self.named.values()) if isinstance(one, PendingCall) and not one.over)


def _value(argument: Any) -> Any:
    if not isinstance(argument, PendingCall):
        return argument
    if argument.error is not None:
        raise argument.error
    return argument.value


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

    def __init__(self, who: str, arena: Arena, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.who, self._arena, self._context = who, arena, context
        self.socket: zmq.Socket[bytes] | None = None
        self._peer: Peer | None = None
        self._idempotent: frozenset[str] = frozenset()  # verbs that may be called twice
        self._queue: deque[PendingCall] = deque()  # bounded by MAX_UNDER_WAY, as is what is out
        self._out: dict[int, PendingCall] = {}
        self._paused: list[tuple[float, PendingCall]] = []
        self._number = 0
        self._gone = ""
        self._lock = Lock()

    @property
    def under_way(self) -> int:
        return len(self._queue) + len(self._out) + len(self._paused)

    def put(self, call: PendingCall, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Queue a call. What it is given is taken now, so that its caller may change it."""
        if self.under_way >= MAX_UNDER_WAY:
            raise Overloaded(f"{MAX_UNDER_WAY} calls are under way", where=self.who, do="Take their results first")
        call.args, call.named = snapshot(args), snapshot(named)
        with self._lock:
            if self._gone:
                call.error, call.over = gone(self.who, self._gone), True
                return
            self._number += 1
            call.number = self._number
            self._queue.append(call)

    def connect(self, ready: Ready) -> None:
        """Its process can be called."""
        name = b"\1" + np.random.default_rng().bytes(7)  # ZeroMQ keeps names that begin with 0 for itself
        peer = introduce(socket_beside(ready.address), self._arena, name)
        connection = self._context.socket(zmq.DEALER)
        connection.setsockopt(zmq.LINGER, 0)
        connection.setsockopt(zmq.SNDHWM, 0)  # what is under way is bounded here
        connection.setsockopt(zmq.RCVHWM, 0)
        connection.setsockopt(zmq.IDENTITY, name)
        with self._lock:
            self._peer = peer
            self._idempotent = frozenset(ready.idempotent)
        connection.connect(ready.address)
        self.socket = connection

    def disconnect(self, why: str, settle: Callable[[PendingCall], None]) -> None:
        """Its process has ended: what is idempotent waits for the next one, the rest is lost."""
        with self._lock:
            if self.socket is not None and self._peer is not None:
                self.socket.close()
                self._arena.forget(self._peer.name)
                self._peer.close()
            self.socket = self._peer = None
            again = [one for one in self._out.values() if one.verb in self._idempotent]
            dead = [one for one in self._out.values() if one.verb not in self._idempotent]
            self._queue.extendleft(reversed(again))
            self._out = {}
        for one in dead:
            one.error = lost(self.who, self.who, one.verb, why)
            settle(one)

    def end(self, why: str, settle: Callable[[PendingCall], None]) -> None:
        """There is no next process: no call that waits, or comes, is answered."""
        with self._lock:
            self._gone = why
        self.disconnect(why, settle)
        self.flush(math.inf, settle)  # those that paused, too

    def flush(self, now: float, settle: Callable[[PendingCall], None]) -> None:
        """Send what can be sent, in its order."""
        if self._paused and now >= self._paused[0][0]:
            with self._lock:
                self._queue.extendleft(one for due, one in reversed(self._paused) if due <= now)
                self._paused = [(due, one) for due, one in self._paused if due > now]
        while self._queue and (self._gone or (self.socket is not None and not any(self._queue[0].waits_for()))):
            with self._lock:
                call = self._queue.popleft()
            try:
                if self._gone:
                    raise gone(self.who, self._gone)
                self._send(call)
            except SparringError as error:
                call.error = error
                settle(call)

    def due(self) -> float | None:
        """When a call that paused is sent again."""
        return self._paused[0][0] if self._paused else None

    def receive(self, now: float, settle: Callable[[PendingCall], None]) -> None:
        """Take in all answers that are there."""
        assert self.socket is not None
        assert self._peer is not None
        mapped = {self._peer.arena: self._peer.mapped}
        while True:
            try:
                said = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            for one in messages_of([frame.buffer for frame in said]):
                with suppress(WireError):
                    answer = codec().decode(one, mapped)
                    call = self._out.pop(answer.id, None)
                    if call is not None:
                        self._answered(call, answer, now, settle)

    def _answered(self, call: PendingCall, answer: Head, now: float, settle: Callable[[PendingCall], None]) -> None:
        if answer.kind == ERROR:
            call.error = error_of(answer.body)
            if isinstance(call.error, ShuttingDown):  # of this instance there is no other one to ask
                call.error = lost(self.who, self.who, call.verb, call.error.wrong)
            if isinstance(call.error, Overloaded) and call.error.limit == "wait":
                call.error = None
                call.pauses += 1
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(call.pauses, 8))
                self._paused = sorted([*self._paused, (now + pause, call)], key=lambda one: one[0])
                return
        else:
            call.value = answer.body
        settle(call)

    def _send(self, call: PendingCall) -> None:
        assert self.socket is not None
        assert self._peer is not None
        args = [_value(one) for one in call.args]  # an answer in its place; the error of one that failed is this one's
        named = {name: _value(one) for name, one in call.named.items()}
        head = Head(frames.VERSION, call.kind, call.number, call.verb, WORK_S, [args, named])
        message = codec().encode(head, self._arena, self._peer.name)
        self._out[call.number] = call
        self.socket.send_multipart(message, copy=False)
