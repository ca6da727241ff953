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
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from sparring.closable import Closable
from sparring.errors import SparringError, Unreachable, WireError
from sparring.services.client import Client, Connection
from sparring.services.discovery import Discovery, Instance, Target, open_discovery
from sparring.services.errors import CallFailed as CallFailed
from sparring.services.errors import CallLost as CallLost
from sparring.services.errors import CallTimeout as CallTimeout
from sparring.services.errors import Overloaded, ShuttingDown, error_of
from sparring.services.frames import CALL, ERROR, TASK
from sparring.services.register import HOW_BUSY, service_name

if TYPE_CHECKING:
    from sparring.services.topics import TopicReader, TopicWriter

ABSENT_S = 0.02  # between two looks for a service that has no instance
STATUS_S, STATUS_THREADS = 1.0, 32


class Solver(Closable):
    """Threads may share one; each has its own sockets."""

    def __init__(self, discovery: Discovery | None = None, deadline_s: float = 10.0) -> None:
        self._discovery = open_discovery() if discovery is None else discovery
        self._owned = discovery is None
        self._deadline_s = deadline_s
        self._key: str | None = None  # calls of one key go to one instance for as long as that lives
        self._client = Client(self._discovery)

    def within(self, deadline_s: float) -> "Solver":
        """The same, with another deadline."""
        other = copy(self)
        other._deadline_s, other._owned = deadline_s, False
        return other

    def sticky(self, key: str) -> "Solver":
        """The same, for calls that belong together: an instance keeps what it remembers of `key`."""
        other = copy(self)
        other._key, other._owned = key, False
        return other

    def retrieve(self, service: object, verb: str, /, *args: Any, **named: Any) -> Any:
        """Ask a service (its class, an instance of it, or its name) and wait for the answer."""
        return self._wait(CALL, service, verb, (args, named))

    def send(self, service: object, verb: str, /, *args: Any, **named: Any) -> None:
        """Queue a task there; returns once it is queued."""
        self._wait(TASK, service, verb, (args, named))

    def retrieve_async(self, service: object, verb: str, /, *args: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        """Like `retrieve`, in an event loop. Arrays must not change before the answer has come."""
        return self._call(CALL, service, verb, (args, named))

    async def send_async(self, service: object, verb: str, /, *args: Any, **named: Any) -> None:
        """Like `send`, in an event loop."""
        await self._call(TASK, service, verb, (args, named))

    def publisher(self, topic: str) -> "TopicWriter":
        """The writer of a topic."""
        from sparring.services.topics import Publisher

        own = getattr(self._discovery, "publisher", None)  # one with topics of its own: Ray's
        opened: TopicWriter = Publisher(topic, self._discovery) if own is None else own(topic)
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
        self._client.close()
        if self._owned:
            self._discovery.close()

    async def close_async(self) -> None:
        """Close this event loop's sockets."""
        self._client.close_loop()

    def _wait(self, kind: int, service: object, verb: str, body: Any) -> Any:
        """The same steps in this thread: where they block they never suspend."""
        try:
            self._call(kind, service, verb, body, blocking=True).send(None)
        except StopIteration as answered:
            return answered.value
        raise AssertionError("a blocking call was suspended")

    async def _call(self, kind: int, called: object, verb: str, body: Any, *, blocking: bool = False) -> Any:
        client, discovery, service = self._client, self._discovery, service_name(called)
        if (call := getattr(discovery, "call" if blocking else "call_async", None)) is not None:  # Ray's own
            answered = call(service, verb, body, self._deadline_s, self._key)
            return answered if blocking else await answered
        now = time.monotonic()
        until, attempt = now + self._deadline_s, 0
        refused: list[str] = []
        while True:
            target = client.router.choose(service, self._key, refused, now)
            if target is None:
                pause_s = _absence_s(service, now, until)
            else:
                try:
                    if blocking:
                        answer = client.call(target, kind, verb, body, until)
                    else:
                        answer = await client.call_async(target, kind, verb, body, until)
                    if answer.kind != ERROR:
                        return answer.body
                    error = error_of(answer.body)
                except (Unreachable, WireError) as failed:
                    error = failed
                finally:
                    client.router.done(target)
                pause_s = self._retry_after_s(error, target, verb, refused, attempt, until)
            if blocking:
                time.sleep(pause_s)
            else:
                await asyncio.sleep(pause_s)
            attempt += 1
            now = time.monotonic()

    def _retry_after_s(
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
        self._client.router.look_again(target.instance.service)
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


def call_instance(discovery: Discovery, instance: Instance, verb: str, *args: Any, deadline_s: float = 10.0) -> Any:
    """The answer of this very instance, whatever others offer its service. Errors are those of any call."""
    with closing(Client(discovery)) as client:
        return _call(client, instance, verb, args, deadline_s)


def service_status(discovery: Discovery) -> list[tuple[Instance, int | None]]:
    """Every instance by service and id, and how many calls wait there or are worked on; None where it did not answer in
    time, or where calls are not ours (Ray's). They are asked in parallel."""
    found = [one for service in discovery.services() for one in discovery.instances(service)]
    found.sort(key=lambda one: (one.service, one.id))
    with closing(Client(discovery)) as client, ThreadPoolExecutor(STATUS_THREADS) as threads:
        return list(threads.map(lambda one: (one, _outstanding(client, one)), found))


def _outstanding(client: Client, instance: Instance) -> int | None:
    if not instance.address.startswith(("ipc://", "tcp://")):
        return None
    try:
        answer = _call(client, instance, HOW_BUSY, (), STATUS_S)
    except SparringError:
        return None
    return answer if isinstance(answer, int) else None


def _call(client: Client, instance: Instance, verb: str, args: tuple[Any, ...], deadline_s: float) -> Any:
    with closing(Connection(client, Target(instance), None)) as connection:
        answer = connection.call(CALL, verb, (args, {}), time.monotonic() + deadline_s)
    if answer.kind == ERROR:
        raise error_of(answer.body)
    return answer.body
