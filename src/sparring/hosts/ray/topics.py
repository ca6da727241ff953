"""Topics on Ray: the latest value by name, in the object store, which holds it once for each node.

    publisher ─ put ─► object store ◄─ get ─ subscribers
        └─ version and place ─► its named actor ─► subscribers, which ask or wait for a version

As with services/topics.py a slow or dead subscriber costs the publisher nothing, and of two publishers of one topic
the later one counts. The actor ends with its publisher.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any, Self

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from sparring.hosts.ray.calls import plain
from sparring.services.topics import TopicReader, next_version, service_of

LOOK_S = 0.5  # how often a subscriber looks whether another publisher has come
ANSWER_S = 10.0
READERS = 1000  # that may wait at one actor
_PREFIX = "topics/"


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


class RayPublisher:
    """The writer of a topic; as services.topics.Publisher."""

    def __init__(self, topic: str, namespace: str) -> None:
        self._version = -1
        self._ref: Any = None  # of the value, which lives as long as this
        name = f"{_PREFIX}{service_of(topic)}/{time.time_ns():020}"
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RaySubscription(TopicReader):
    """Arrays are views of the node's object store, and cannot be written."""

    def __init__(self, topic: str, namespace: str, wait_s: float = 0.0) -> None:
        super().__init__(topic, wait_s)
        self._prefix, self._namespace = f"{_PREFIX}{service_of(topic)}/", namespace
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
        there = [
            one["name"]
            for one in list_named_actors(all_namespaces=True)
            if one["namespace"] == self._namespace and one["name"].startswith(self._prefix)
        ]
        latest = max(there, default="")
        if not latest or (latest == self._source and self._actor is not None):
            return
        try:
            self._actor = ray.get_actor(latest, self._namespace)
        except ValueError:  # it has just ended
            return
        if latest != self._source:
            self._source, self.version = latest, -1  # another publisher counts from its own beginning
