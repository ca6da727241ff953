"""One instance of a service at its address.

    callers ──► inbox ─► (batch) ─► worker: one thing at a time ─► outbox ──► callers

Two threads. The first reads, answers, queues and gathers batches, so that a caller of a task is answered at once
whatever is being worked on. The second works. What is quick (see waiting.py) and finds nobody at work is done by the
first thread itself: handing over would cost more than the work.
"""

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import zmq

from sparring.errors import Refused, WireError
from sparring.services import frames
from sparring.services.call_batch import joined, parted, shape_of
from sparring.services.client_sockets import AT_ONCE, EVENTS, MORE, READABLE, plain_send
from sparring.services.discovery import Discovery, Instance
from sparring.services.errors import Overloaded as Overloaded
from sparring.services.errors import ShuttingDown, story_of, told_of
from sparring.services.fd_passing import NAME_BYTES, Peer, Reception
from sparring.services.fd_passing import beside as beside
from sparring.services.frames import (
    ACCEPTED,
    ANSWER,
    CALL,
    ERROR,
    MOST_TOGETHER,
    TASK,
    Codec,
    Head,
    are_several,
    is_small,
    number_of,
    together,
)
from sparring.services.register import HOW_BUSY, service_name, verbs_of
from sparring.services.request_queue import QUICK_CALLS, QUICK_S, Request, RequestQueue
from sparring.services.router import FRESH_S
from sparring.services.shared_memory import Arena

TOGETHER_S = 0.0002  # an answer waits no longer for that of another call that came with it, and for its end
MAX_ANSWERS = 8192  # to one caller that does not read them; more are dropped
DRAIN_S, STOP_S = 1.0, 1.0  # for what waits when it is closed, then for what is at work
LINGER_MS = 200  # for answers on their way


class Server:
    """Serves `instance` until it is closed. `address` is where it is found, once it is started."""

    def __init__(self, instance: object, discovery: Discovery, *, name: str = "", id: str = "") -> None:
        self._discovery = discovery
        self.name, self.id = name or service_name(instance), id or os.urandom(4).hex()
        self._lines = {
            name: RequestQueue(verb, getattr(instance, name), verb.response and verb.batch == 1)
            for name, verb in verbs_of(instance).items()
        }
        if not self._lines:
            raise WireError("it has no verb", where=self.name, do="Decorate a method with @register()")
        self._context = zmq.Context()
        self._work: deque[tuple[RequestQueue, list[Request]]] = deque()  # bounded by each verb's queue
        self._something = threading.Condition()
        self._working = False
        self._due: float | None = None  # when the first of what is gathered must be worked on
        self._out: deque[tuple[bytes, list[Any]]] = deque()  # the second thread's answers, for the first to send
        self._leaving = self._stopping = False
        self._heard_s = 0.0
        self.failures: deque[str] = deque(maxlen=20)  # stories of tasks that failed; nobody waited for them
        self._threads: list[threading.Thread] = []
        self._arena = Arena()
        self._reception: Reception | None = None
        self._peers: dict[bytes, dict[int, Any]] = {}  # callers of this machine by name: their arenas

    def start(self) -> Self:
        """Listen, and let others find it."""
        self._inbox = self._context.socket(zmq.ROUTER)
        self._inbox.setsockopt(zmq.LINGER, LINGER_MS)
        self._inbox.setsockopt(zmq.SNDHWM, MAX_ANSWERS)
        self._inbox.setsockopt(zmq.MAXMSGSIZE, frames.MAX_BYTES)
        self._plain_send = plain_send(self._inbox)
        # A thread that waits for callers is woken as by a caller: then it waits for one thing only, which is cheap.
        self._inbox.bind("inproc://woken")
        self._wakers = {b"\2" + os.urandom(12) for _ in range(2)}  # nobody else can have such a name
        by_work, by_close = (self._waker(name) for name in self._wakers)
        self._wake = by_close
        self._door = self._discovery.listen(self._inbox, self.name, self.id)
        self.address = self._door.address
        if self.address.startswith("ipc://"):
            self._reception = Reception(beside(self.address), self._arena, self._came, self._gone)
        self._threads = [
            threading.Thread(target=self._listen, name=f"{self.name}-io", daemon=True),
            threading.Thread(target=self._labour, args=(by_work,), name=f"{self.name}-work", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        again = tuple(name for name, line in self._lines.items() if line.verb.idempotent)
        self._announced = self._discovery.announce(
            Instance(service=self.name, id=self.id, address=self.address, pid=os.getpid(), idempotent=again)
        )
        return self

    def close(self) -> None:
        """No longer found. What was taken is worked on for a second more; who waits longer is told to ask elsewhere."""
        self._announced.close()
        self._leaving = True
        time.sleep(max(0.0, min(FRESH_S, self._heard_s + 2 * FRESH_S - time.monotonic())))  # who knew it may still call
        with self._something:
            self._something.wait_for(lambda: not self._work and not self._working, DRAIN_S)
            self._stopping = True
            self._something.notify_all()
        io, work = self._threads
        work.join(STOP_S)
        self._wake.send(b"")
        io.join(STOP_S)
        self._wake.close()
        self._inbox.close()
        if self._reception is not None:
            self._reception.close()
        self._arena.close()
        self._door.close()
        self._context.destroy(linger=LINGER_MS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _waker(self, name: bytes) -> "zmq.Socket[bytes]":
        waker = self._context.socket(zmq.DEALER)
        waker.setsockopt(zmq.LINGER, 0)
        waker.setsockopt(zmq.IDENTITY, name)
        waker.connect("inproc://woken")
        return waker

    def _came(self, peer: Peer) -> None:
        self._peers[peer.name] = {peer.arena: peer.mapped}

    def _gone(self, peer: Peer) -> None:
        if self._peers.get(peer.name, {}).get(peer.arena) is peer.mapped:  # else it has introduced itself anew
            del self._peers[peer.name]
            self._arena.forget(peer.name)

    # The first thread.

    def _listen(self) -> None:
        codec, recv = Codec(), self._inbox.recv
        while not self._stopping:
            if self._due is not None and not self._comes_before(self._due):
                self._flush(codec)
                continue
            caller = recv()
            first = recv(copy=False)
            said: list[Any] = [first.bytes]
            while first.more:  # an array may be large: it is not copied
                first = recv(copy=False)
                said.append(first.buffer)
            if caller in self._wakers:
                self._tell()
            elif are_several(said[0]):
                self._take_several(codec, caller, said[0])
            else:
                self._take(codec, caller, said)
        self._send_away(codec)

    def _comes_before(self, due: float) -> bool:
        """Wait for a message until then."""
        while (left := due - time.monotonic()) > 0:
            if int(self._inbox.getsockopt(EVENTS)) & READABLE:
                return True
            select.select([int(self._inbox.getsockopt(zmq.FD))], [], [], left)  # ZeroMQ's own waits count milliseconds
        return False

    def _take(self, codec: Codec, caller: bytes, said: Sequence[Any]) -> None:
        mapped = self._peers.get(caller[:NAME_BYTES])
        try:
            head = codec.decode(said, mapped)
        except WireError as error:
            number = number_of(said[0])
            if number is not None:
                self._fail(codec, Request(caller, number, 0.0, (), {}), error)
                self._tell()
            return
        answered = self._begin(codec, caller, head, mapped is not None)
        if answered is None:
            self._tell()
        elif len(answered) == 1:
            self._plain_send(caller, MORE | AT_ONCE)
            self._plain_send(answered[0], AT_ONCE)
        else:
            self._send(caller, answered)

    def _take_several(self, codec: Codec, caller: bytes, first: bytes) -> None:
        """Calls that came together are answered together, as far as that holds nobody up."""
        mapped = self._peers.get(caller[:NAME_BYTES])
        try:
            heads = codec.decode_several(first, mapped)
        except WireError:  # the others are sound, perhaps
            for one in frames.messages_of([first]):
                self._take(codec, caller, one)
            return
        due = time.monotonic() + TOGETHER_S
        for head in heads:
            answered = self._begin(codec, caller, head, mapped is not None)
            if answered is not None:
                self._out.append((caller, answered))
            if self._heard_s > due:
                self._tell()
                due = self._heard_s + TOGETHER_S
        self._tell()

    def _begin(self, codec: Codec, caller: bytes, head: Head, beside: bool) -> list[Any] | None:
        """The answer of what is done at once. None where it waits, or where the answer is among those to be sent."""
        line = self._lines.get(head.verb)
        self._heard_s = begun = time.monotonic()
        try:
            args, named = head.body
        except (TypeError, ValueError) as error:
            self._fail(codec, Request(caller, head.id, 0.0, (), {}), error)
            return None
        if line is None or not line.at_once or head.kind != CALL or self._work or self._working or self._leaving:
            self._enter(codec, line, head, Request(caller, head.id, begun + head.seconds, args, named))
            return None
        try:
            answer = Head(frames.VERSION, ANSWER, head.id, "", 0.0, line.method(*args, **named))
            answered = codec.encode(answer, self._arena if beside else None, caller[:NAME_BYTES])
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a method raises is told to who asked)
            self._fail(codec, Request(caller, head.id, 0.0, args, named), error)
            return None
        if (seconds := time.monotonic() - begun) >= QUICK_S or line.doubted:
            line.took(seconds)
        return answered

    def _enter(self, codec: Codec, line: RequestQueue | None, head: Head, asked: Request) -> None:
        """What is not done at once waits in its line, or is refused."""
        if head.verb == HOW_BUSY and head.kind == CALL:
            waiting = sum(line.all_waiting for line in self._lines.values()) + self._working
            self._answer(codec, asked, ANSWER, waiting)
        elif line is None or head.kind not in (CALL, TASK):
            known = ", ".join(sorted(self._lines))
            error = Refused(f"it has no verb {head.verb!r}", where=self.name, do=f"Ask for one of {known}")
            self._fail(codec, asked, error)
        elif self._leaving:
            self._fail(codec, asked, self._left())
        elif line.all_waiting >= line.verb.queue:
            do = "Wait for a place" if line.verb.full == "wait" else "Ask again later"
            busy = Overloaded(f"{line.all_waiting} wait for {head.verb}", where=self.name, do=do, limit=line.verb.full)
            self._fail(codec, asked, busy)
        elif not line.verb.response or head.kind == TASK:
            self._answer(codec, asked, ACCEPTED, None)
            asked.caller = b""
            self._hand_over(line, [asked])
        elif line.verb.batch > 1:
            self._gather(codec, line, asked)
        else:
            self._hand_over(line, [asked])

    def _left(self) -> ShuttingDown:
        return ShuttingDown(f"{self.id} is about to end", where=self.name, do="Ask another one")

    def _gather(self, codec: Codec, line: RequestQueue, asked: Request) -> None:
        if not line.gathered:
            line.due = time.monotonic() + line.verb.wait_ms / 1000
            self._due = line.due if self._due is None else min(self._due, line.due)
        line.gathered.append(asked)
        if len(line.gathered) >= line.verb.batch:
            self._release(codec, line)

    def _flush(self, codec: Codec) -> None:
        now = time.monotonic()
        for line in self._lines.values():
            if line.gathered and now >= line.due:
                self._release(codec, line)
        self._tell()

    def _release(self, codec: Codec, line: RequestQueue) -> None:
        """What was gathered goes to work; callers whose arrays cannot be stacked go in groups."""
        groups: dict[Any, list[Request]] = {}
        for asked in line.gathered:
            groups.setdefault(shape_of((asked.args, asked.named)), []).append(asked)
        line.gathered = []
        self._due = min((line.due for line in self._lines.values() if line.gathered), default=None)
        for group in groups.values():
            if line.quick >= QUICK_CALLS and not self._work and not self._working and not self._leaving:
                self._do(codec, line, group)
            else:
                self._hand_over(line, group)

    def _hand_over(self, line: RequestQueue, group: list[Request]) -> None:
        with self._something:
            line.waiting += len(group)
            self._work.append((line, group))
            self._something.notify_all()

    def _tell(self) -> None:
        """Send the answers that are out; small ones to the same caller that follow one another go together."""
        out = self._out
        while out:
            caller, said = out.popleft()
            if is_small(said):
                heads = said
                while out and len(heads) < MOST_TOGETHER and out[0][0] == caller and is_small(out[0][1]):
                    heads += out.popleft()[1]
                said = [together(heads)]
            self._send(caller, said)

    def _send(self, caller: bytes, said: list[Any]) -> None:
        send, last = self._inbox.send, len(said) - 1
        with contextlib.suppress(zmq.ZMQError):  # the caller has gone
            send(caller, MORE | AT_ONCE)
            for place, frame in enumerate(said):  # the first is small: to copy it costs less than not to
                send(frame, MORE if place < last else 0, copy=place == 0)

    def _send_away(self, codec: Codec) -> None:
        """Nobody who waits is left without an answer."""
        waiting = [asked for line in self._lines.values() for asked in line.gathered]
        waiting += [asked for _, group in self._work for asked in group]
        for asked in waiting:
            self._fail(codec, asked, self._left())
        self._tell()

    # The second thread.

    def _labour(self, wake: "zmq.Socket[bytes]") -> None:
        codec = Codec()
        while True:
            with self._something:
                self._working = False
                while not self._work and not self._stopping:
                    self._something.notify_all()  # who closes waits for that
                    self._something.wait()
                if self._stopping:
                    break
                self._working = True
                line, group = self._work.popleft()
                line.waiting -= len(group)
            self._do(codec, line, group)
            del group  # its arrays belong to callers
            wake.send(b"")
        wake.close()

    # Either.

    def _do(self, codec: Codec, line: RequestQueue, group: list[Request]) -> None:
        """Work, and put the answers out."""
        begun = time.monotonic()
        group = [asked for asked in group if asked.until > begun or not asked.caller]
        if not group:
            return
        try:
            if line.verb.batch > 1:
                args, named = joined([(asked.args, asked.named) for asked in group])
                results = parted(line.method(*args, **named), len(group), line.verb.name)
            else:
                results = [line.method(*group[0].args, **group[0].named)]
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a method raises is told to those who asked)
            for asked in group:
                self._fail(codec, asked, error)
            return
        line.took(time.monotonic() - begun)
        for asked, result in zip(group, results, strict=True):
            self._answer(codec, asked, ANSWER, result)

    def _answer(self, codec: Codec, asked: Request, kind: int, body: Any) -> None:
        if asked.caller:
            name = asked.caller[:NAME_BYTES]
            arena = self._arena if name in self._peers else None
            try:
                said = codec.encode(Head(frames.VERSION, kind, asked.id, "", 0.0, body), arena, name)
            except WireError as error:
                self._fail(codec, asked, error)
                return
            self._out.append((asked.caller, said))

    def _fail(self, codec: Codec, asked: Request, error: BaseException) -> None:
        if not asked.caller:
            self.failures.append(story_of(error))
            return
        told = told_of(error, self.name)
        self._out.append((asked.caller, codec.encode(Head(frames.VERSION, ERROR, asked.id, "", 0.0, told))))
