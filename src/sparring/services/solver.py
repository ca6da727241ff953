"""Solver: calls a service by its name, on whichever machine an instance of it runs.

    solver = Solver()
    action = solver.retrieve(Actor, "act", observation)

A call goes to the live instance with the fewest calls under way. Each call has a deadline. An error of the method comes
back typed, with its traceback. An instance that dies under a call ends it at once; the call is made again on another
instance only where its verb is idempotent.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from sparring.errors import SparringError, Unreachable, WireError
from sparring.services.async_client import AsyncConnections
from sparring.services.client import ClientContext, Connection, Router, Target
from sparring.services.discovery import Discovery, open_discovery
from sparring.services.errors import CallFailed as CallFailed
from sparring.services.errors import CallLost as CallLost
from sparring.services.errors import CallTimeout as CallTimeout
from sparring.services.errors import Overloaded, ShuttingDown, error_of
from sparring.services.frames import CALL, ERROR, TASK, Head
from sparring.services.register import service_name

if TYPE_CHECKING:
    from sparring.services.discovery import TopicPublisher
    from sparring.services.topics import TopicReader

ABSENT_S = 0.02  # between two looks for a service that has no instance


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
        return self._call(CALL, service_name(service), verb, (args, named))

    def send(self, service: object, verb: str, /, *args: Any, **named: Any) -> None:
        """Queue a task there; returns once it is queued."""
        self._call(TASK, service_name(service), verb, (args, named))

    def retrieve_async(self, service: object, verb: str, /, *args: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        """Like `retrieve`, in an event loop. Arrays must not change before the answer has come."""
        return self._call_async(CALL, service_name(service), verb, (args, named))

    async def send_async(self, service: object, verb: str, /, *args: Any, **named: Any) -> None:
        """Like `send`, in an event loop."""
        await self._call_async(TASK, service_name(service), verb, (args, named))

    def publisher(self, topic: str) -> "TopicPublisher":
        """The writer of a topic."""
        from sparring.services.topics import Publisher

        own = getattr(self._discovery, "publisher", None)  # one with topics of its own: Ray's
        opened: TopicPublisher = Publisher(topic, self._discovery) if own is None else own(topic)
        return opened

    def subscribe(self, topic: str, wait_s: float = 0.0) -> "TopicReader":
        """The latest value of a topic, for one thread: as there is (async), or with `wait_s` waited for (sync)."""
        from sparring.services.topics import Subscription

        own = getattr(self._discovery, "subscription", None)
        opened: TopicReader = Subscription(topic, self._discovery, wait_s) if own is None else own(topic, wait_s)
        return opened

    def proxy(self, service: object) -> "Proxy":
        """The service as if it were here: proxy.verb(…)."""
        return Proxy(self.retrieve, service_name(service))

    def proxy_async(self, service: object) -> "Proxy":
        """The same in an event loop: await proxy.verb(…)."""
        return Proxy(self.retrieve_async, service_name(service))

    def close(self) -> None:
        """Close every socket; in an event loop `await close_async()` first. Arrays that were answered stay."""
        self._shared.router.close()
        self._shared.context.close()
        if self._owned:
            self._discovery.close()

    async def close_async(self) -> None:
        """Close this event loop's sockets."""
        self._shared.of_loop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with(self, terms: Terms) -> "Solver":
        other = Solver.__new__(Solver)
        other._discovery, other._terms, other._shared, other._owned = self._discovery, terms, self._shared, False
        return other

    def _call(self, kind: int, service: str, verb: str, body: Any) -> Any:
        shared, terms = self._shared, self._terms
        if (call := getattr(self._discovery, "call", None)) is not None:  # a discovery with calls of its own: Ray's
            return call(service, verb, body, terms.deadline_s, terms.key)
        now = time.monotonic()
        until, attempt = now + terms.deadline_s, 0
        refused: list[str] = []
        while True:
            target = shared.router.choose(service, terms.key, refused, now)
            if target is None:
                time.sleep(_absence_s(service, now, until))
            else:
                try:
                    answer = shared.call(target, kind, verb, body, until)
                    if answer.kind != ERROR:
                        return answer.body
                    error = error_of(answer.body)
                except (Unreachable, WireError) as failed:
                    error = failed
                finally:
                    shared.router.done(target)
                if (pause := shared.retry_after_s(error, target, verb, refused, attempt, until)) > 0:
                    time.sleep(pause)
            attempt += 1
            now = time.monotonic()

    async def _call_async(self, kind: int, service: str, verb: str, body: Any) -> Any:
        shared, terms = self._shared, self._terms
        if (call := getattr(self._discovery, "call_async", None)) is not None:
            return await call(service, verb, body, terms.deadline_s, terms.key)
        now = time.monotonic()
        until, attempt = now + terms.deadline_s, 0
        refused: list[str] = []
        while True:
            target = shared.router.choose(service, terms.key, refused, now)
            if target is None:
                await asyncio.sleep(_absence_s(service, now, until))
            else:
                try:
                    connection = await shared.of_loop().get(target, until)
                    while connection.is_full():
                        await connection.room(verb, until)
                    answer = await connection.begin(kind, verb, body, now, until)
                    if answer.kind != ERROR:
                        return answer.body
                    error = error_of(answer.body)
                except (Unreachable, WireError) as failed:
                    error = failed
                finally:
                    shared.router.done(target)
                if isinstance(error, CallLost):
                    shared.of_loop().drop(target)
                if (pause := shared.retry_after_s(error, target, verb, refused, attempt, until)) > 0:
                    await asyncio.sleep(pause)
            attempt += 1
            now = time.monotonic()


class _Shared:
    """What solvers of different terms have in common."""

    def __init__(self, discovery: Discovery) -> None:
        self.router = Router(discovery)
        self.context = ClientContext(discovery)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncConnections] = WeakKeyDictionary()

    def of_loop(self) -> AsyncConnections:
        """The running event loop's connections."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            found = self._loops[loop] = AsyncConnections(self.context)
        return found

    def call(self, target: Target, kind: int, verb: str, body: Any, until: float) -> Head:
        """The answer, on an idle connection or a new one; where the call fails that is closed, since its answer might
        still come."""
        try:
            connection = target.idle.pop()
        except IndexError:
            connection = Connection(self.context, target, self.context.peer(target, until))
        try:
            answer = connection.call(kind, verb, body, until)
        except BaseException:
            connection.close()
            raise
        target.idle.append(connection)
        if target.gone:
            target.close()
        return answer

    def retry_after_s(
        self, error: SparringError, target: Target, verb: str, refused: list[str], attempt: int, until: float
    ) -> float:
        """After how many seconds a failed call is made again; raises the error where it is not."""
        if isinstance(error, Overloaded):
            if error.limit != "wait":
                raise error
            if time.monotonic() > until:
                raise CallTimeout(error.wrong, where=error.where, do="Give it longer, or start more of it") from None
            return float(min(0.05, 0.001 * 2 ** min(attempt, 6)))
        if isinstance(error, CallLost):
            target.close()
        elif not isinstance(error, ShuttingDown):
            raise error
        self.router.look_again(target.instance.service)
        refused.append(target.instance.id)
        if isinstance(error, CallLost) and verb not in target.instance.idempotent:
            raise error
        return 0.0


def _absence_s(service: str, now: float, until: float) -> float:
    """How long to wait for an instance; the error where that is over."""
    if now > until:
        do = "Start one, or look with `spar services list`"
        raise Unreachable(f"no instance of {service} is there", where="solver", do=do)
    return min(ABSENT_S, until - now + 0.001)


class Proxy:
    """A service as if it were here."""

    def __init__(self, ask: Callable[..., Any], service: str) -> None:
        self._ask, self._service = ask, service

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return partial(self._ask, self._service, verb)
