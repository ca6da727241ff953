"""`ray://`: services found as Ray's named actors, and called by Ray, behind the verbs of a Solver.

ray://auto/NAMESPACE is what a host on Ray sets for what it starts; ray://HOST:PORT/NAMESPACE joins that cluster first.
"""

import asyncio
import threading
import time
from typing import Any, NoReturn
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from sparring.errors import ConfigError, Unreachable
from sparring.hosts.ray.calls import RayCallee, RayPending, call
from sparring.hosts.ray.cluster import STORE_BYTES, address_of, join
from sparring.hosts.ray.topics import RayPublisher, RaySubscription
from sparring.services.client import Router, Target
from sparring.services.discovery import Announcement, Instance, ServerSocket
from sparring.services.errors import CallLost, late

FRESH_S = 1.0  # for so long the actors' names are taken to be as they were
PAUSE_S = 0.05
PREFIX = "sparring/"


class RayDiscovery:
    """Threads may share one."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._lock = threading.Lock()
        self._seen_s = float("-inf")
        self._names: dict[str, list[str]] = {}  # service → the names of its actors
        self._callees: dict[str, RayCallee] = {}  # by name
        self._router = Router(self)

    # The verbs of a Solver (services/solver.py calls these where a discovery has them).

    def call(self, service: str, verb: str, body: Any, deadline_s: float, key: str | None) -> Any:
        """Call an instance, and wait for its answer; as of a Solver."""
        until = time.monotonic() + deadline_s
        refused: list[str] = []
        while True:
            target, callee = self._choose(service, key, refused, until)
            if target is None or callee is None:
                time.sleep(PAUSE_S)
                continue
            try:
                return call(callee, verb, *body).result(max(0.0, until - time.monotonic()))
            except CallLost:
                if not self._may_repeat(target, callee, verb, refused):
                    raise
            finally:
                self._router.done(target)

    async def call_async(self, service: str, verb: str, body: Any, deadline_s: float, key: str | None) -> Any:
        """Like `call`, in an event loop."""
        until = time.monotonic() + deadline_s
        refused: list[str] = []
        while True:
            target, callee = await asyncio.to_thread(self._choose, service, key, refused, until)
            if target is None or callee is None:
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                return await _answer(call(callee, verb, *body), callee, verb, deadline_s, until)
            except CallLost:
                if not self._may_repeat(target, callee, verb, refused):
                    raise
            finally:
                self._router.done(target)

    def publisher(self, topic: str) -> RayPublisher:
        """The writer of a topic."""
        return RayPublisher(topic, self.namespace)

    def subscription(self, topic: str, wait_s: float) -> RaySubscription:
        """A reader of it."""
        return RaySubscription(topic, self.namespace, wait_s)

    # What a Discovery is asked.

    def instances(self, service: str) -> tuple[Instance, ...]:
        self._look(service)
        return tuple(
            Instance(service=service, id=name.rpartition("/")[2], address=f"ray://{self.namespace}/{name}")
            for name in self._names.get(service, [])
        )

    def alive(self, instance: Instance) -> bool:
        return instance in self.instances(instance.service)

    def services(self) -> tuple[str, ...]:
        self._look("")
        return tuple(sorted(self._names))

    def listen(self, socket: Any, service: str, id: str) -> ServerSocket:
        _not_here()

    def connect(self, socket: Any, instance: Instance) -> None:
        _not_here()

    def announce(self, instance: Instance) -> Announcement:
        _not_here()

    def close(self) -> None:
        """Nothing is held."""

    # Who is there.

    def _look(self, service: str) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._seen_s < FRESH_S and (service in self._names or not service):
                return
            self._seen_s = now
        names: dict[str, list[str]] = {}
        for one in list_named_actors(all_namespaces=True):
            if one["namespace"] == self.namespace and one["name"].startswith(PREFIX):
                names.setdefault(one["name"].split("/")[1], []).append(one["name"])
        with self._lock:
            self._names = {service: sorted(found) for service, found in names.items()}
            there = {name for found in names.values() for name in found}
            self._callees = {name: one for name, one in self._callees.items() if name in there}

    def _choose(
        self, service: str, key: str | None, refused: list[str], until: float
    ) -> tuple[Target | None, RayCallee | None]:
        """Where a call goes; nothing where no instance is there yet, Unreachable where that has been so too long."""
        now = time.monotonic()
        target = self._router.choose(service, key, refused, now)
        callee = None if target is None else self._callee(f"{PREFIX}{service}/{target.instance.id}")
        if target is not None and callee is None:
            self._router.done(target)
        if callee is None and now > until:
            do = "Start one, or look with `spar services list`"
            raise Unreachable(f"no instance of {service} is there", where="solver", do=do)
        return target, callee

    def _callee(self, name: str) -> RayCallee | None:
        """An actor that is called for the first time says which of its verbs may be called twice."""
        if (known := self._callees.get(name)) is not None:
            return known
        try:
            actor: Any = ray.get_actor(name, self.namespace)
            verbs: list[str] = ray.get(actor.idempotent.remote(), timeout=FRESH_S)
        except (RayError, ValueError):  # not there any more, or not yet
            return None
        callee = self._callees[name] = RayCallee(name.removeprefix(PREFIX), actor, frozenset(verbs))
        return callee

    def _may_repeat(self, target: Target, callee: RayCallee, verb: str, refused: list[str]) -> bool:
        """Forget an instance that was lost; whether another one may be called."""
        self._callees.pop(f"{PREFIX}{callee.who}", None)  # another may have taken its place
        refused.append(target.instance.id)
        return verb in callee.idempotent


async def _answer(pending: RayPending, callee: RayCallee, verb: str, deadline_s: float, until: float) -> Any:
    future = asyncio.wrap_future(pending.ref.future())
    done, _ = await asyncio.wait([future], timeout=max(0.0, until - time.monotonic()))
    if not done:
        future.add_done_callback(lambda done: done.exception())
        raise late(callee.who, callee.who, verb, deadline_s)
    return pending.answered(future.result)


def _not_here() -> NoReturn:
    do = "Let a host on Ray start it"
    raise ConfigError("Ray's actors are found by their names, and by nothing else", where="ray://", do=do)


def open_ray(url: str) -> RayDiscovery:
    """The discovery behind a URL; the cluster is joined where this process is not in one yet."""
    namespace = urlsplit(url).path.strip("/")
    if not namespace:
        do = "Say ray://auto/NAMESPACE, as the host does in SPARRING_DISCOVERY"
        raise ConfigError(f"{url!r} names no namespace", where="services.discovery", do=do)
    join(address_of(url), STORE_BYTES)
    return RayDiscovery(namespace)
