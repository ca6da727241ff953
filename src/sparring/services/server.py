"""One instance of a service at its address.

    callers ──► inbox ─► (batch) ─► worker: one thing at a time ─► outbox ──► callers

Two threads. The first reads, answers, queues and gathers batches, so that a caller of a task is answered at once
whatever is being worked on. The second works. What is quick (see QUICK_S) and finds nobody at work is done by the first
thread itself: handing over would cost more than the work.
"""

import contextlib
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import zmq

from sparring.errors import Refused, SparringError, WireError
from sparring.services import frames
from sparring.services.arena import Arena, Mapped
from sparring.services.batching import joined, parted, shape_of
from sparring.services.discovery import Discovery, Instance
from sparring.services.frames import ACCEPTED, ANSWER, CALL, ERROR, TASK, Head, codec
from sparring.services.handover import Peer, Reception
from sparring.services.register import Verb, service_name, verbs_of

QUICK_S = 0.0005  # a verb that took no longer in each of its last calls is done without handing over
QUICK_CALLS = 4
MAX_AT_ONCE = 256  # messages read before answers are sent


def beside(address: str) -> Path:
    """Where arenas are handed over: beside the socket of the calls."""
    return Path(address.removeprefix("ipc://")).with_suffix(".fd")


class Busy(Refused):
    """So many wait that one more is not taken."""

    code = "busy"
    status = 503


@dataclass(slots=True)
class _Asked:
    """One caller's request."""

    caller: bytes
    id: int
    until: float  # when nobody waits for it any more
    args: Any
    named: Any


@dataclass(slots=True)
class _Line:
    """Those who wait for one verb."""

    verb: Verb
    waiting: int = 0  # queued or gathered, not yet begun
    gathered: list[_Asked] = field(default_factory=list)
    due: float = 0.0  # when what is gathered must be worked on
    quick: int = 0  # calls in a row that were


class Server:
    """Serves `instance` until it is closed. `address` is where it is found, once it is started."""

    def __init__(self, instance: object, discovery: Discovery, *, name: str = "", id: str = "") -> None:
        self._instance, self._discovery = instance, discovery
        self.name, self.id = name or service_name(instance), id or os.urandom(4).hex()
        self._lines = {name: _Line(verb) for name, verb in verbs_of(instance).items()}
        if not self._lines:
            raise WireError("it has no verb", where=self.name, do="Decorate a method with @register()")
        self._methods = {name: getattr(instance, name) for name in self._lines}
        self._context = zmq.Context()
        self._work: deque[tuple[_Line, list[_Asked]]] = deque()
        self._something = threading.Condition()
        self._working = False
        self._out: deque[tuple[bytes, list[Any]]] = deque()
        self._stopping = False
        self.failures: deque[str] = deque(maxlen=20)  # stories of tasks that failed; nobody waited for them
        self._threads: list[threading.Thread] = []
        self._arena = Arena()
        self._reception: Reception | None = None
        self._peers: dict[bytes, Peer] = {}  # callers of this machine, by name
        self._mapped: dict[int, Mapped] = {}  # their arenas

    def start(self) -> Self:
        """Listen, and let others find it."""
        self._inbox = self._context.socket(zmq.ROUTER)
        self._inbox.setsockopt(zmq.LINGER, 0)
        self._inbox.setsockopt(zmq.MAXMSGSIZE, frames.MAX_BYTES)
        self._door = self._discovery.listen(self._inbox, self.name, self.id)
        self.address = self._door.address
        if self.address.startswith("ipc://"):
            self._reception = Reception(beside(self.address), self._arena)
        self._woken = self._context.socket(zmq.PULL)
        self._woken.bind("inproc://woken")
        self._threads = [
            threading.Thread(target=self._listen, name=f"{self.name}-io", daemon=True),
            threading.Thread(target=self._labour, name=f"{self.name}-work", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        again = tuple(name for name, line in self._lines.items() if line.verb.idempotent)
        self._announced = self._discovery.announce(
            Instance(service=self.name, id=self.id, address=self.address, pid=os.getpid(), idempotent=again)
        )
        return self

    def close(self) -> None:
        """No longer found; what waits is not done any more."""
        self._announced.close()
        self._stopping = True
        with self._something:
            self._something.notify()
        for thread in self._threads:
            thread.join(3.0)
        self._inbox.close()
        self._woken.close()
        for peer in self._peers.values():
            peer.close()
        if self._reception is not None:
            self._reception.close()
        self._arena.close()
        self._door.close()
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # The first thread.

    def _listen(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inbox, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        if self._reception is not None:
            poller.register(self._reception.fileno(), zmq.POLLIN)
        while not self._stopping:
            ready = dict(poller.poll(self._patience_ms()))
            for handle in ready:
                if isinstance(handle, int):
                    self._greet(handle, poller)
            self._hear()
            self._flush(time.monotonic())
            self._tell()

    def _greet(self, handle: int, poller: zmq.Poller) -> None:
        """A caller of this machine has come, or gone."""
        assert self._reception is not None
        if handle == self._reception.fileno():
            if (peer := self._reception.admit()) is not None:
                self._peers[peer.name], self._mapped[peer.arena] = peer, peer.mapped
                poller.register(peer.line.fileno(), zmq.POLLIN)
            return
        for name, peer in list(self._peers.items()):
            if peer.line.fileno() == handle:
                poller.unregister(handle)
                self._arena.forget(name)
                del self._peers[name], self._mapped[peer.arena]
                peer.close()

    def _patience_ms(self) -> int:
        due = min((line.due for line in self._lines.values() if line.gathered), default=None)
        # Rounded down: a batch is never held longer than was promised.
        return 100 if due is None else max(0, int((due - time.monotonic()) * 1000))

    def _hear(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                self._woken.recv(zmq.NOBLOCK)
        for _ in range(MAX_AT_ONCE):
            try:
                caller, *said = self._inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except ValueError:
                continue
            self._take(caller.bytes, [frame.buffer for frame in said])

    def _take(self, caller: bytes, said: Sequence[Any]) -> None:
        try:
            head = codec().decode(said, self._mapped)
            args, named = head.body
        except (WireError, TypeError, ValueError, IndexError):
            return  # it cannot be answered: it has no number
        line = self._lines.get(head.verb)
        asked = _Asked(caller, head.id, time.monotonic() + head.seconds, args, named)
        if line is None or head.kind not in (CALL, TASK):
            known = ", ".join(sorted(self._lines))
            self._fail(asked, Refused(f"it has no verb {head.verb!r}", where=self.name, do=f"Ask for one of {known}"))
        elif line.waiting >= line.verb.queue:
            do = "Wait for a place" if line.verb.full == "wait" else "Ask again later"
            busy = Busy(f"{line.waiting} wait for {head.verb}", where=self.name, do=do, limit=line.verb.full)
            self._fail(asked, busy)
        elif not line.verb.response or head.kind == TASK:
            self._answer(asked, ACCEPTED, None)
            asked.caller = b""
            self._hand_over(line, [asked])
        elif line.verb.batch > 1:
            self._gather(line, asked)
        elif line.quick >= QUICK_CALLS and not self._work and not self._working:
            self._do(line, [asked])
        else:
            self._hand_over(line, [asked])

    def _gather(self, line: _Line, asked: _Asked) -> None:
        if not line.gathered:
            line.due = time.monotonic() + line.verb.wait_ms / 1000
        line.gathered.append(asked)
        line.waiting += 1
        if len(line.gathered) >= line.verb.batch:
            self._release(line)

    def _flush(self, now: float) -> None:
        for line in self._lines.values():
            if line.gathered and now >= line.due:
                self._release(line)

    def _release(self, line: _Line) -> None:
        """What was gathered goes to work; callers whose arrays cannot be stacked go in groups."""
        groups: dict[Any, list[_Asked]] = {}
        for asked in line.gathered:
            groups.setdefault(shape_of((asked.args, asked.named)), []).append(asked)
        line.waiting -= len(line.gathered)
        line.gathered = []
        for group in groups.values():
            if line.quick >= QUICK_CALLS and not self._work and not self._working:
                self._do(line, group)
            else:
                self._hand_over(line, group)

    def _hand_over(self, line: _Line, group: list[_Asked]) -> None:
        line.waiting += len(group)
        with self._something:
            self._work.append((line, group))
            self._something.notify()

    def _tell(self) -> None:
        while self._out:
            caller, said = self._out.popleft()
            with contextlib.suppress(zmq.ZMQError):  # the caller has gone
                self._inbox.send_multipart([caller, *said], zmq.NOBLOCK, copy=False)

    # The second thread.

    def _labour(self) -> None:
        wake = self._context.socket(zmq.PUSH)
        wake.setsockopt(zmq.LINGER, 0)
        wake.connect("inproc://woken")
        while not self._stopping:
            with self._something:
                if not self._work:
                    self._working = False
                    self._something.wait(0.1)
                    continue
                self._working = True
                line, group = self._work.popleft()
                line.waiting -= len(group)
            self._do(line, group)
            wake.send(b"")
        wake.close()

    # Either.

    def _do(self, line: _Line, group: list[_Asked]) -> None:
        """Work, and put the answers out."""
        begun = time.monotonic()
        group = [asked for asked in group if asked.until > begun or not asked.caller]
        if not group:
            return
        method = self._methods[line.verb.name]
        try:
            if line.verb.batch > 1:
                args, named = joined([(asked.args, asked.named) for asked in group])
                results = parted(method(*args, **named), len(group), line.verb.name)
            else:
                results = [method(*group[0].args, **group[0].named)]
        except Exception as error:  # noqa: BLE001  (whatever a user's method raises is told to those who asked)
            for asked in group:
                self._fail(asked, error)
            return
        for asked, result in zip(group, results, strict=True):
            self._answer(asked, ANSWER, result)
        took = time.monotonic() - begun
        line.quick = line.quick + 1 if took < QUICK_S else 0

    def _answer(self, asked: _Asked, kind: int, body: Any) -> None:
        if asked.caller:
            try:
                arena = self._arena if asked.caller in self._peers else None
                said = codec().encode(Head(frames.VERSION, kind, asked.id, "", 0.0, body), arena, asked.caller)
            except WireError as error:
                self._fail(asked, error)
                return
            self._out.append((asked.caller, said))

    def _fail(self, asked: _Asked, error: Exception) -> None:
        story = "".join(traceback.format_exception(error))[-8000:]
        if not asked.caller:
            self.failures.append(story)
            return
        told: dict[str, str | int | None] = {
            "type": type(error).__name__,
            "wrong": str(error),
            "where": self.name,
            "do": "",
            "story": story,
        }
        if isinstance(error, SparringError):
            told |= {"wrong": error.wrong, "where": error.where, "do": error.do}
        if isinstance(error, Refused):
            told |= {"field": error.field, "limit": error.limit if isinstance(error.limit, int | str) else None}
        self._out.append((asked.caller, codec().encode(Head(frames.VERSION, ERROR, asked.id, "", 0.0, told))))
