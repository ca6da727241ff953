"""`ray://`: services found as Ray's named actors, and called by Ray, behind the verbs of a Solver.

ray://auto/NAMESPACE is what a host on Ray sets for what it starts; ray://HOST:PORT/NAMESPACE joins that cluster first.
"""

import asyncio
import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from sparring.errors import ConfigError, Unreachable
from sparring.hosts.ray.calls import RayPending, ask
from sparring.hosts.ray.cluster import STORE_BYTES, address_of, join
from sparring.hosts.ray.topics import RayPublisher, RaySubscription
from sparring.services.discovery import Announced, Instance, ServerSocket
from sparring.services.errors import CallLost, late

FRESH_S = 1.0  # for so long the actors' names are taken to be as they were
PAUSE_S = 0.05
STICKY_KEYS = 100_000  # the longest unused are forgotten
PREFIX = "sparring/"


@dataclass(frozen=True, slots=True)
class Found:
    """A named actor that holds an instance."""

    service: str
    index: int
    actor: Any
    idempotent: frozenset[str]

    @property
    def who(self) -> str:
        return f"{self.service}/{self.index}"

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.who}"

    def turn(self) -> None:
        return None

    def why_gone(self) -> str:
        return ""

    def why_late(self) -> str:
        return ""


class RayDiscovery:
    """Threads may share one."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._lock = threading.Lock()
        self._seen_s = float("-inf")
        self._names: dict[str, list[str]] = {}  # service → the names of its actors
        self._known: dict[str, Found] = {}  # by name
        self._calls: Counter[str] = Counter()  # under way, by name
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()  # (service, key) → name

    # The verbs of a Solver (services/solver.py asks for these where a discovery has them).

    def call(self, service: str, verb: str, body: Any, deadline_s: float, key: str | None) -> Any:
        """Ask an instance, and wait for its answer; as of a Solver."""
        until = time.monotonic() + deadline_s
        refused: set[str] = set()
        while True:
            found = self._choose(service, key, refused)
            if found is None:
                _give_up(service, until)
                time.sleep(PAUSE_S)
                continue
            with self._under_way(found):
                try:
                    return self._asked(found, verb, body).result(max(0.0, until - time.monotonic()))
                except CallLost:  # another is asked where twice is fine
                    refused.add(self._forgotten(found))
                    if verb not in found.idempotent:
                        raise

    async def call_async(self, service: str, verb: str, body: Any, deadline_s: float, key: str | None) -> Any:
        """Like `call`, in an event loop."""
        until = time.monotonic() + deadline_s
        refused: set[str] = set()
        while True:
            found = await asyncio.to_thread(self._choose, service, key, refused)
            if found is None:
                _give_up(service, until)
                await asyncio.sleep(PAUSE_S)
                continue
            with self._under_way(found):
                pending = self._asked(found, verb, body)
                future = asyncio.wrap_future(pending.ref.future())
                done, _ = await asyncio.wait([future], timeout=max(0.0, until - time.monotonic()))
                if not done:
                    future.add_done_callback(lambda done: done.exception())
                    raise late(found.who, found.who, verb, deadline_s)
                try:
                    return pending.answered(future.result)
                except CallLost:  # another is asked where twice is fine
                    refused.add(self._forgotten(found))
                    if verb not in found.idempotent:
                        raise

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

    def announce(self, instance: Instance) -> Announced:
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
            self._known = {name: one for name, one in self._known.items() if name in self._names.get(one.service, [])}

    def _choose(self, service: str, key: str | None, refused: set[str]) -> Found | None:
        self._look(service)
        with self._lock:
            there = [name for name in self._names.get(service, []) if name not in refused]
            if not there:
                return None
            kept = None if key is None else self._kept.get((service, key))
            if kept in there:
                chosen = kept
            else:
                least = min(self._calls[name] for name in there)
                chosen = random.choice([name for name in there if self._calls[name] == least])
            if key is not None:
                self._kept[service, key] = chosen
                self._kept.move_to_end((service, key))
                if len(self._kept) > STICKY_KEYS:
                    self._kept.popitem(last=False)
            known = self._known.get(chosen)
        return known or self._met(service, chosen)

    def _met(self, service: str, name: str) -> Found | None:
        """An actor that is asked for the first time says which of its verbs may be asked twice."""
        try:
            actor: Any = ray.get_actor(name, self.namespace)
            verbs: list[str] = ray.get(actor.idempotent.remote(), timeout=FRESH_S)
        except (RayError, ValueError):  # not there any more, or not yet
            return None
        found = Found(service, int(name.rpartition("/")[2]), actor, frozenset(verbs))
        with self._lock:
            self._known[name] = found
        return found

    def _forgotten(self, found: Found) -> str:
        """Its name: whoever is asked next by that name is met anew, for another may have taken its place."""
        with self._lock:
            self._known.pop(found.name, None)
        return found.name

    def _asked(self, found: Found, verb: str, body: Any) -> RayPending:
        args, named = body
        return ask(found, verb, tuple(args), named)

    @contextmanager
    def _under_way(self, found: Found) -> Iterator[None]:
        with self._lock:
            self._calls[found.name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[found.name] -= 1


def _give_up(service: str, until: float) -> None:
    if time.monotonic() > until:
        do = "Start one, or look with `spar services list`"
        raise Unreachable(f"no instance of {service} is there", where="solver", do=do)


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
