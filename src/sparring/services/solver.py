"""The caller's side: one line to call a service, wherever it is.

    solver = Solver()
    action = solver.retrieve(Actor, "act", observation)

A call goes to the live instance with the fewest calls under way. Each call has a deadline. What fails over there comes
back as a typed error with its story; an instance that dies under a call ends it at once, and the call is made again
elsewhere only where its verb is idempotent.
"""

import asyncio
import itertools
import os
import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakKeyDictionary

import zmq

from sparring import errors
from sparring.errors import Refused, SparringError, Unreachable
from sparring.services import frames
from sparring.services.arena import Arena
from sparring.services.asynchronous import Lines
from sparring.services.discovery import Discovery, Instance, open_discovery
from sparring.services.frames import CALL, ERROR, TASK, Head, codec
from sparring.services.handover import Peer, introduce
from sparring.services.register import service_name
from sparring.services.server import Busy, beside

LOOK_S = 0.25  # how often a caller that waits looks whether its instance still lives
FRESH_S = 0.05  # after an answer its instance is taken to live for so long without a look
STICKY_KEYS = 100_000  # the longest unused are forgotten


class CallFailed(SparringError):
    """The method itself failed; `story` is its traceback, as text."""

    story = ""


class Late(Unreachable):
    """No answer within the deadline. It may have been done all the same."""


class Lost(Unreachable):
    """The instance died under the call. It may have been done all the same."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a call is made."""

    deadline_s: float = 10.0
    key: str | None = None  # calls of one key go to one instance for as long as that lives


class Solver:
    """Threads may share one; each has its own sockets."""

    def __init__(self, discovery: Discovery | None = None, terms: Terms | None = None) -> None:
        self._discovery = open_discovery() if discovery is None else discovery
        self._owned = discovery is None
        self._terms = terms or Terms()
        self._shared = _Shared(self._discovery)

    def within(self, deadline_s: float) -> "Solver":
        """The same, with another deadline."""
        return self._with(Terms(deadline_s, self._terms.key))

    def sticky(self, key: str) -> "Solver":
        """The same, for calls that belong together: an instance keeps what it remembers of `key`."""
        return self._with(Terms(self._terms.deadline_s, key))

    def retrieve(self, service: object, verb: str, /, *args: Any, **named: Any) -> Any:
        """Ask a service (its class, an instance of it, or its name) and wait for the answer."""
        return self._call(CALL, service_name(service), verb, [args, named])

    def send(self, service: object, verb: str, /, *args: Any, **named: Any) -> None:
        """Queue a task there; returns once it is queued."""
        self._call(TASK, service_name(service), verb, [args, named])

    async def retrieve_async(self, service: object, verb: str, /, *args: Any, **named: Any) -> Any:
        """Like `retrieve`, in an event loop."""
        return await self._call_async(CALL, service_name(service), verb, [args, named])

    async def send_async(self, service: object, verb: str, /, *args: Any, **named: Any) -> None:
        """Like `send`, in an event loop."""
        await self._call_async(TASK, service_name(service), verb, [args, named])

    def proxy(self, service: object) -> "Proxy":
        """The service as if it were here: proxy.verb(…)."""
        return Proxy(self, service_name(service))

    def close(self) -> None:
        """Close every socket; in an event loop `await close_async()` first."""
        self._shared.close()
        if self._owned:
            self._discovery.close()

    async def close_async(self) -> None:
        """Close this event loop's sockets."""
        await self._shared.lines(self._discovery).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with(self, terms: Terms) -> "Solver":
        other = Solver.__new__(Solver)
        other._discovery, other._terms, other._shared, other._owned = self._discovery, terms, self._shared, False
        return other

    def _call(self, kind: int, service: str, verb: str, body: Any) -> Any:
        until = time.monotonic() + self._terms.deadline_s
        refused: set[str] = set()
        for attempt in itertools.count():
            instance = self._choose(service, until, refused)
            try:
                return self._ask(instance, kind, verb, body, until)
            except Lost:
                refused.add(instance.id)
                if verb not in instance.idempotent:
                    raise
            except Busy as busy:
                time.sleep(_pause_s(busy, attempt, until))
        raise AssertionError

    async def _call_async(self, kind: int, service: str, verb: str, body: Any) -> Any:
        until = time.monotonic() + self._terms.deadline_s
        refused: set[str] = set()
        for attempt in itertools.count():
            instance = self._found(service, refused)
            if instance is None:
                self._give_up(service, until)
                await asyncio.sleep(0.02)
                continue
            try:
                return await self._ask_async(instance, kind, verb, body, until)
            except Lost:
                refused.add(instance.id)
                if verb not in instance.idempotent:
                    raise
            except Busy as busy:
                await asyncio.sleep(_pause_s(busy, attempt, until))
        raise AssertionError

    async def _ask_async(self, instance: Instance, kind: int, verb: str, body: Any, until: float) -> Any:
        number = next(self._shared.numbers)
        said = codec().encode(Head(frames.VERSION, kind, number, verb, until - time.monotonic(), body))
        with self._shared.under_way(instance):
            try:
                answer = await self._shared.lines(self._discovery).line(instance).ask(said, number, until)
            except TimeoutError:
                raise _late(instance, verb) from None
        if answer is None:
            raise _lost(instance, verb)
        return _answered(answer)

    def _choose(self, service: str, until: float, refused: set[str]) -> Instance:
        while (found := self._found(service, refused)) is None:
            self._give_up(service, until)
            time.sleep(0.02)
        return found

    def _found(self, service: str, refused: set[str]) -> Instance | None:
        there = [
            one
            for one in self._discovery.instances(service)
            if one.id not in refused and self._shared.lives(one, self._discovery)
        ]
        return self._shared.choose(there, self._terms.key, service) if there else None

    def _give_up(self, service: str, until: float) -> None:
        if time.monotonic() > until:
            do = "Start one, or look with `spar services list`"
            raise Unreachable(f"no instance of {service} is there", where="solver", do=do)

    def _ask(self, instance: Instance, kind: int, verb: str, body: Any, until: float) -> Any:
        number = next(self._shared.numbers)
        left = until - time.monotonic()
        with self._shared.under_way(instance), self._shared.line(instance) as (line, peer):
            arena, name = (None, b"") if peer is None else (self._shared.arena, peer.name)
            said = codec().encode(Head(frames.VERSION, kind, number, verb, left, body), arena, name)
            line.send_multipart(said, copy=False)
            while True:
                patience = min(LOOK_S, until - time.monotonic())
                if line.poll(max(0, int(patience * 1000) + 1)):
                    heard = [frame.buffer for frame in line.recv_multipart(copy=False)]
                    answer = codec().decode(heard, None if peer is None else {peer.arena: peer.mapped})
                    if answer.id == number:
                        self._shared.heard[instance.id] = time.monotonic()
                        return _answered(answer)
                elif not self._discovery.alive(instance):
                    raise _lost(instance, verb)
                elif time.monotonic() >= until:
                    raise _late(instance, verb)


class _Shared:
    """What solvers of different terms have in common."""

    def __init__(self, discovery: Discovery) -> None:
        self.context = zmq.Context()
        self._discovery = discovery
        self.numbers = itertools.count(1)
        self._of_thread = threading.local()
        self._all: list[tuple[zmq.Socket[bytes], Peer | None]] = []
        self.arena = Arena()
        self.heard: dict[str, float] = {}  # when each instance answered last
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()  # under way, by instance
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Lines] = WeakKeyDictionary()
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()  # (service, key) → instance

    def choose(self, there: list[Instance], key: str | None, service: str) -> Instance:
        if len(there) == 1:
            return there[0]
        with self._lock:
            if key is not None:
                kept = self._kept.get((service, key))
                for one in there:
                    if one.id == kept:
                        self._kept.move_to_end((service, key))
                        return one
            least = min(self._calls[one.id] for one in there)
            chosen = random.choice([one for one in there if self._calls[one.id] == least])
            if key is not None:
                self._kept[service, key] = chosen.id
                if len(self._kept) > STICKY_KEYS:
                    self._kept.popitem(last=False)
        return chosen

    def lives(self, instance: Instance, discovery: Discovery) -> bool:
        """Whether it was heard lately, or else is still announced."""
        return time.monotonic() - self.heard.get(instance.id, 0.0) < FRESH_S or discovery.alive(instance)

    @contextmanager
    def under_way(self, instance: Instance) -> Iterator[None]:
        with self._lock:
            self._calls[instance.id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[instance.id] -= 1

    @contextmanager
    def line(self, instance: Instance) -> Iterator[tuple["zmq.Socket[bytes]", Peer | None]]:
        """This thread's socket to the instance; one on which a call went wrong is not used again."""
        lines = self._of_thread.__dict__
        found: tuple[zmq.Socket[bytes], Peer | None] | None = lines.get(instance.id)
        if found is None:
            found = lines[instance.id] = self._connect(instance)
        try:
            yield found
        except (Late, Lost) as error:
            del lines[instance.id]
            self._close(*found, dead=isinstance(error, Lost))
            raise

    def _connect(self, instance: Instance) -> tuple["zmq.Socket[bytes]", Peer | None]:
        line, peer = self.context.socket(zmq.DEALER), None
        line.setsockopt(zmq.LINGER, 0)
        if instance.address.startswith("ipc://"):
            name = b"\1" + os.urandom(7)  # ZeroMQ keeps names that begin with 0 for itself
            line.setsockopt(zmq.IDENTITY, name)
            with suppress(OSError):  # without it arrays go in frames
                peer = introduce(beside(instance.address), self.arena, name)
        self._discovery.connect(line, instance)
        with self._lock:
            self._all.append((line, peer))
        return line, peer

    def _close(self, line: "zmq.Socket[bytes]", peer: Peer | None, *, dead: bool) -> None:
        with self._lock, suppress(ValueError):
            self._all.remove((line, peer))
        line.close()
        if peer is not None:
            if dead:
                self.arena.forget(peer.name)
            peer.close()

    def lines(self, discovery: Discovery) -> Lines:
        """The running event loop's sockets."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            found = self._loops[loop] = Lines(self.context, discovery)
        return found

    def close(self) -> None:
        with self._lock:
            for line, peer in self._all:
                line.close()
                if peer is not None:
                    peer.close()
            self._all = []
        self._of_thread = threading.local()  # each thread's lines hold the memory of the other side
        self.arena.close()
        self.context.destroy(linger=0)


def _lost(instance: Instance, verb: str) -> Lost:
    return Lost(f"{instance.id} died under {verb}", where=instance.service, do="Ask again if twice is fine")


def _late(instance: Instance, verb: str) -> Late:
    do = "Give it longer with solver.within(seconds), or start more of it"
    return Late(f"{instance.id} did not answer {verb} in time", where=instance.service, do=do)


def _pause_s(busy: Busy, attempt: int, until: float) -> float:
    """How long to wait for a place; the error itself where nobody should, or can any more."""
    if busy.limit != "wait":
        raise busy
    if time.monotonic() > until:
        raise Late(busy.wrong, where=busy.where, do="Give it longer, or start more of it") from None
    return float(min(0.05, 0.001 * 2 ** min(attempt, 6)))


class Proxy:
    """A service as if it were here."""

    def __init__(self, solver: Solver, service: str) -> None:
        self._solver, self._service = solver, service

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return lambda *args, **named: self._solver.retrieve(self._service, verb, *args, **named)


def _answered(answer: Head) -> Any:
    """The result, or the error that it tells of."""
    if answer.kind != ERROR:
        return answer.body
    told = answer.body
    words = {"where": told["where"], "do": told["do"] or "Look at its story"}
    if told["type"] == "Busy":
        raise Busy(told["wrong"], **words, limit=told.get("limit"))
    known = getattr(errors, told["type"], None)
    if isinstance(known, type) and issubclass(known, Refused):
        raise known(told["wrong"], **words, field=told.get("field", ""), limit=told.get("limit"))
    if isinstance(known, type) and issubclass(known, SparringError):
        raise known(told["wrong"], **words)
    failed = CallFailed(f"{told['type']}: {told['wrong']}", **words)
    failed.story = told["story"]
    raise failed
