"""`ray://`: services found as Ray's named actors and called by Ray, behind the verbs of a Solver; and topics on Ray.

ray://auto/NAMESPACE is what a host on Ray sets for what it starts; ray://HOST:PORT/NAMESPACE joins that cluster first.

A topic's latest value lies in the object store, which holds it once for each node:

    publisher ─ put ─► object store ◄─ get ─ subscribers
        └─ version and place ─► its named actor ─► subscribers, which ask or wait for a version

As with services/topics.py a slow or dead subscriber costs the publisher nothing, and of two publishers of one topic
the later one counts. The actor ends with its publisher.
"""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from sparring.errors import ConfigError, Unreachable
from sparring.hosts.ray.actor import RayCallee, call, plain
from sparring.hosts.ray.cluster import STORE_BYTES, address_of, join, running_here
from sparring.services.discovery import Instance, Router
from sparring.services.errors import CallLost
from sparring.services.topics import TopicReader, TopicWriter, next_version, service_of

FRESH_S = 1.0  # for so long the actors' names are taken to be as they were
PAUSE_S = 0.05
ASYNC_CALLS = 1000  # at once; each has a thread that waits for Ray
LOOK_S = 0.5  # how often a subscriber looks whether another publisher has come
ANSWER_S = 10.0
READERS = 1000  # that may wait at one topic's actor
PREFIX, TOPICS = "sparring/", "topics/"


def open_ray(url: str) -> "RayDiscovery":
    """The discovery behind a URL; the cluster is joined where this process is not in one yet. None is started: it
    would have none of the services that are looked for."""
    namespace = urlsplit(url).path.strip("/")
    if not namespace:
        do = "Say ray://auto/NAMESPACE, as the host does in SPARRING_DISCOVERY"
        raise ConfigError(f"{url!r} names no namespace", where="services.discovery", do=do)
    address = address_of(url)
    if address in ("auto", "local") and not ray.is_initialized():
        address = running_here() or ""
        if not address:
            do = "Start the services first, or name their cluster: ray://HOST:PORT/NAMESPACE"
            raise Unreachable("no Ray cluster runs on this machine", where=url, do=do)
    join(address, STORE_BYTES)
    return RayDiscovery(namespace)


def _named_actors(namespace: str, prefix: str) -> list[str]:
    """The names in a namespace that begin so, in their order."""
    there = list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in there if one["namespace"] == namespace and one["name"].startswith(prefix))


class RayDiscovery:
    """Threads may share one."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._lock = threading.Lock()
        self._seen_s = float("-inf")
        self._names: dict[str, list[str]] = {}  # service → the names of its actors
        self._callees: dict[str, RayCallee] = {}  # by name
        self._router = Router(self)
        self._threads = ThreadPoolExecutor(ASYNC_CALLS, "ray-call")

    # The verbs of a Solver (services/solver.py calls these where a discovery has them).

    def call(self, service: str, verb: str, body: Any, deadline_s: float, key: str | None) -> Any:
        """Call an instance, and wait for its answer; as of a Solver."""
        until = time.monotonic() + deadline_s
        refused: list[str] = []
        while True:
            target = self._router.choose(service, key, refused, time.monotonic())
            if target is not None:
                name = f"{PREFIX}{service}/{target.instance.id}"
                try:
                    if (callee := self._callee(name)) is not None:
                        return call(callee, verb, *body).result(max(0.0, until - time.monotonic()))
                except CallLost:
                    self._callees.pop(name, None)  # another may have taken its place
                    if callee is None or verb not in callee.idempotent:
                        raise
                    refused.append(target.instance.id)
                    continue
                finally:
                    self._router.done(target)
            if time.monotonic() > until:
                do = "Start one, or look with `spar services list`"
                raise Unreachable(f"no instance of {service} is there", where="solver", do=do)
            time.sleep(PAUSE_S)

    async def call_async(self, *of_call: Any) -> Any:
        """Like `call`, in an event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.call, *of_call)

    def publisher(self, topic: str) -> "RayPublisher":
        """The writer of a topic."""
        return RayPublisher(topic, self.namespace)

    def subscription(self, topic: str, wait_s: float) -> "RaySubscription":
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

    def listen(self, *_: Any, **__: Any) -> NoReturn:
        do = "Let a host on Ray start it"
        raise ConfigError("Ray's actors are found by their names, and by nothing else", where="ray://", do=do)

    connect = announce = listen

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    # Who is there.

    def _look(self, service: str) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._seen_s < FRESH_S and (service in self._names or not service):
                return
            self._seen_s = now
        there = _named_actors(self.namespace, PREFIX)
        names: dict[str, list[str]] = {}
        for name in there:
            names.setdefault(name.split("/")[1], []).append(name)
        with self._lock:
            self._names = names
            self._callees = {name: one for name, one in self._callees.items() if name in there}

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


class RayTopicActor:
    """What Ray runs: the newest version, and where its value is."""

    def __init__(self) -> None:
        self._version, self._held = -1, list[Any]()
        self._changed = asyncio.Condition()

    async def put(self, version: int, held: list[Any]) -> None:
        """`held` is the value's reference, in a list, so that Ray hands on the reference itself."""
        async with self._changed:
            self._version, self._held = version, held
            self._changed.notify_all()

    async def newest(self, after: int, wait_s: float) -> tuple[int, list[Any]]:
        """A version after that one, waited for; nothing where none has come."""
        async with self._changed:
            if self._version <= after and wait_s > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait_for(lambda: self._version > after), wait_s)
            return (self._version, self._held) if self._version > after else (after, [])


class RayPublisher(TopicWriter):
    """The writer of a topic; as services.topics.Publisher."""

    def __init__(self, topic: str, namespace: str) -> None:
        self._version = -1
        self._ref: Any = None  # of the value, which lives as long as this
        name = f"{TOPICS}{service_of(topic)}/{time.time_ns():020}"
        options = {"name": name, "namespace": namespace, "num_cpus": 0, "max_concurrency": READERS}
        self._actor: Any = ray.remote(RayTopicActor).options(**options).remote()
        self._put: Any = None

    def publish(self, value: Any, version: int | None = None) -> int:
        """Show `value` (plain data and arrays) to all; its version, one more than the last unless it is given."""
        version = next_version(self._version, version)
        if self._put is not None:
            ray.wait([self._put], timeout=ANSWER_S)  # one at a time is under way
        self._version = version
        self._ref = ray.put(plain(value))
        self._put = self._actor.put.remote(self._version, [self._ref])
        return self._version

    def close(self) -> None:
        """The topic ends; what subscribers hold they keep."""
        if self._actor is not None:
            ray.kill(self._actor)
        self._actor = self._ref = self._put = None


class RaySubscription(TopicReader):
    """Arrays are views of the node's object store, and cannot be written."""

    def __init__(self, topic: str, namespace: str, wait_s: float = 0.0) -> None:
        super().__init__(topic, wait_s)
        self._prefix, self._namespace = f"{TOPICS}{service_of(topic)}/", namespace
        self._actor: Any = None
        self._source, self._looked = "", float("-inf")

    def close(self) -> None:
        """Listen no more; the value stays."""
        self._actor = None

    def _look(self, timeout_s: float) -> None:
        """Take the newest version if there is a newer one, or if it comes in time."""
        self._find()
        if self._actor is None:
            time.sleep(min(timeout_s, 0.05))
            return
        try:
            version, held = ray.get(self._actor.newest.remote(self.version, timeout_s), timeout=timeout_s + ANSWER_S)
            if held:
                self.value, self.version = ray.get(held[0], timeout=ANSWER_S), version
        except RayError:  # it has ended: what is known stays, and another may come
            self._actor, self._looked = None, float("-inf")

    def _find(self) -> None:
        """The actor of the latest publisher; the old one where there is none."""
        now = time.monotonic()
        if self._actor is not None and now - self._looked < LOOK_S:
            return
        self._looked = now
        latest = max(_named_actors(self._namespace, self._prefix), default="")
        if not latest or (latest == self._source and self._actor is not None):
            return
        try:
            self._actor = ray.get_actor(latest, self._namespace)
        except ValueError:  # it has just ended
            return
        if latest != self._source:
            self._source, self.version = latest, -1  # another publisher counts from its own beginning
