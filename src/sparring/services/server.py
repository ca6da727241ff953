"""One instance of a service at its address.

    callers ──► socket ─► (batch) ─► executor: one thing at a time ─► replies ──► callers

Two threads. The first reads messages, queues requests and sends replies, so that a caller of a task is answered at
once whatever is being worked on. The second works (executor.py). A quick verb that finds nothing at work is done by the
first thread itself: handing it over would cost more than the work.
"""

import os
import threading
import time
from collections import deque
from functools import partial
from typing import Any, Self

import zmq

from sparring.errors import WireError
from sparring.services import frames
from sparring.services.client import MORE, plain_send, receive
from sparring.services.discovery import FRESH_S, Discovery, Instance
from sparring.services.errors import encode_error
from sparring.services.executor import STOP_S, Executor, Request
from sparring.services.frames import ACCEPTED, ANSWER, CALL, ERROR, TASK, Head, codec, is_small, together
from sparring.services.register import HOW_BUSY, service_name
from sparring.services.shared_memory import NAME_BYTES, Arena, ArenaExchange, socket_beside

TOGETHER_S = 0.0002  # for so long answers to calls that came together wait for each other
MAX_ANSWERS = 8192  # to one caller that does not read them; more are dropped
DRAIN_S = 1.0  # for requests that wait when it is closed
LINGER_MS = 200  # for answers on their way
_WAKE = "inproc://wake"


class Server:
    """Serves `instance` until it is closed. `address` is where it is found, once it is started."""

    def __init__(self, instance: object, discovery: Discovery, *, name: str = "", id: str = "") -> None:
        self._instance, self._discovery = instance, discovery
        self.name, self.id = name or service_name(instance), id or os.urandom(4).hex()
        self._context = zmq.Context()
        self._replies: deque[tuple[bytes, list[Any]]] = deque()  # caller and message, for the first thread to send
        self._stopping = False
        self._heard_s = 0.0  # when a caller was last heard
        self._arena = Arena()

    def start(self) -> Self:
        """Listen, and let callers find it."""
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, MAX_ANSWERS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, frames.MAX_BYTES)
        self._send = plain_send(self._socket)
        # The thread that waits for callers is woken as by a caller: then it waits for one thing only, which is cheap.
        self._socket.bind(_WAKE)
        self._waker_names = {b"\2" + os.urandom(12) for _ in range(2)}  # no caller can have such a name
        self._by_work, self._by_close = map(self._waker, self._waker_names)
        self._executor = Executor(self._instance, self.name, after=partial(self._by_work.send, b""))
        if not self._executor.queues:
            raise WireError("it has no verb", where=self.name, do="Decorate a method with @register()")
        self._listening = self._discovery.listen(self._socket, self.name, self.id)
        self.address = self._listening.address
        self._exchange = ArenaExchange(socket_beside(self.address), self._arena)
        self._thread = threading.Thread(target=self._listen, name=f"{self.name}-io", daemon=True)
        self._thread.start()
        again = tuple(name for name, queue in self._executor.queues.items() if queue.verb.idempotent)
        self._announcement = self._discovery.announce(
            Instance(service=self.name, id=self.id, address=self.address, pid=os.getpid(), idempotent=again)
        )
        return self

    def close(self) -> None:
        """No longer found. Requests that were taken are worked on for a second more; the rest are told to ask another
        instance."""
        self._announcement.close()
        self._executor.closing = True
        time.sleep(max(0.0, min(FRESH_S, self._heard_s + 2 * FRESH_S - time.monotonic())))  # callers may still know it
        self._executor.close(DRAIN_S)
        self._stopping = True
        self._by_close.send(b"")
        self._thread.join(STOP_S)
        for socket in (self._by_close, self._by_work, self._socket):
            socket.close()
        self._exchange.close()
        self._arena.close()
        self._listening.close()
        self._context.destroy(linger=LINGER_MS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _waker(self, name: bytes) -> "zmq.Socket[bytes]":
        waker = self._context.socket(zmq.DEALER)
        waker.setsockopt(zmq.LINGER, 0)
        waker.setsockopt(zmq.IDENTITY, name)
        waker.connect(_WAKE)
        return waker

    # The first thread.

    def _listen(self) -> None:
        socket, decode_each = self._socket, codec().decode_each
        while not self._stopping:
            caller = socket.recv()
            message = receive(socket)
            if caller not in self._waker_names:
                send_s = time.monotonic() + TOGETHER_S
                for one in decode_each(message, self._exchange.arenas.get(caller[:NAME_BYTES])):
                    if isinstance(one, Head):
                        self._begin(caller, one)
                    else:
                        self._fail(caller, *one)
                    if self._heard_s > send_s:
                        self._send_replies()
                        send_s = self._heard_s + TOGETHER_S
            self._send_replies()
        self._send_replies()

    def _begin(self, caller: bytes, head: Head) -> None:
        """Do the call now if it is quick, or queue it."""
        executor = self._executor
        self._heard_s = begun = time.monotonic()
        try:
            args, named = head.body
            if head.verb == HOW_BUSY and head.kind == CALL:
                self._reply(caller, head.id, ANSWER, executor.outstanding())
                return
            queue = executor.queue_of(head.verb)
            if queue.is_quick and queue.verb.batch == 1 and head.kind == CALL and executor.is_idle():
                self._reply(caller, head.id, ANSWER, queue.method(*args, **named))
                queue.took(time.monotonic() - begun)
            elif head.kind == TASK or not queue.verb.response:
                executor.submit(queue, Request(args, named, 0.0, None))
                self._reply(caller, head.id, ACCEPTED, None)
            elif head.kind == CALL:
                answer = partial(self._answer, caller, head.id)
                executor.submit(queue, Request(args, named, begun + head.seconds, answer))
            else:
                raise WireError(f"kind {head.kind} is no call", where=self.name, do="Run the same release")
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a method raises is told to its caller)
            self._fail(caller, head.id, error)

    def _send_replies(self) -> None:
        """Send what is there; small messages to the same caller that follow one another go together. To a caller that
        has gone or does not read ZeroMQ drops them: this never waits."""
        replies, send, most = self._replies, self._send, frames.MOST_TOGETHER
        while replies:
            caller, message = replies.popleft()
            if replies and is_small(message):
                heads = message
                while replies and len(heads) < most and replies[0][0] == caller and is_small(replies[0][1]):
                    heads += replies.popleft()[1]
                message = [together(heads)]
            send(caller, MORE)
            if len(message) == 1:
                send(message[0])
            else:
                self._socket.send_multipart(message, copy=False)

    # Either thread.

    def _answer(self, caller: bytes, number: int, result: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                self._reply(caller, number, ANSWER, result)
            except WireError as wrong:
                error = wrong
        if error is not None:
            self._fail(caller, number, error)

    def _reply(self, caller: bytes, number: int, kind: int, body: Any) -> None:
        name = caller[:NAME_BYTES]
        arena = self._arena if name in self._exchange.arenas else None
        head = Head(frames.VERSION, kind, number, "", 0.0, body)
        self._replies.append((caller, codec().encode(head, arena, name)))

    def _fail(self, caller: bytes, number: int, error: BaseException) -> None:
        head = Head(frames.VERSION, ERROR, number, "", 0.0, encode_error(error, self.name))
        self._replies.append((caller, codec().encode(head)))
