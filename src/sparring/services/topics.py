"""Topics: the latest value by name, with a version.

    publisher ─► one unnamed piece of memory for each version ─► every subscriber on the machine reads that memory
        └─ tcp ─► one mirror on each other machine ─► the same there

Publishing is one copy, however many subscribe: they are sent a descriptor (shared_value.py), and a slow or dead
subscriber costs nothing. A subscriber takes the newest value (async) or waits for a version (sync), as it was opened.
Of two publishers of a topic the later one counts: a learner that was restarted takes over from one that hangs.
"""

import fcntl
import os
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparring.closable import Closable
from sparring.errors import ConfigError, Unreachable
from sparring.services.discovery import Discovery, Instance, Local
from sparring.services.register import register
from sparring.services.server import Server
from sparring.services.shared_value import ValueReader, ValueServer, read_value
from sparring.services.solver import Solver

PREFIX, MIRROR = "topic-", "mirror-"
LOOK_S = 0.5  # how often a subscriber looks whether another publisher has come
WAIT_S = 0.25  # of one wait for a version: then the subscriber looks again who publishes
POLL_S, STOP_S = 0.02, 10.0  # of a mirror


def service_of(topic: str) -> str:
    """The service under which a topic is found; topics are named with slashes, files are not."""
    if not topic or not all(part.replace("-", "").replace("_", "").isalnum() for part in topic.split("/")):
        raise ConfigError(f"{topic!r} is no topic", where="topics", do='Name it like "weights/main"')
    return PREFIX + topic.replace("/", ".")


def next_version(last: int, version: int | None) -> int:
    """The version of the next value: one more than the last, unless it is given."""
    if version is not None and version <= last:
        raise ConfigError(f"version {version} after {last}", where="topic", do="Count upwards")
    return last + 1 if version is None else version


class TopicWriter(Closable, ABC):
    """The publisher of a topic."""

    @abstractmethod
    def publish(self, value: Any, version: int | None = None) -> int:
        """Show `value` (plain data and arrays) to all; its version, one more than the last unless it is given."""

    @abstractmethod
    def close(self) -> None:
        """End the topic; subscribers keep the values that they hold."""


class TopicReader(Closable, ABC):
    """A subscriber, for one thread. It holds the newest value that it has seen. `wait_s` > 0 makes `take` wait."""

    def __init__(self, topic: str, wait_s: float) -> None:
        self.topic, self._wait_s = topic, wait_s
        self.version, self.value = -1, None

    def take(self, version: int = 0) -> Any:
        """The value to use when `version` is wanted: that or a later one (sync), or the newest there is (async)."""
        return self.at_least(version, self._wait_s) if self._wait_s > 0 else self.newest()

    def newest(self, timeout_s: float = 0.0) -> Any:
        """The newest value there is now; waits only where none was ever seen, at most so long."""
        self._look(0.0 if self.version >= 0 else timeout_s)
        return self.value

    def at_least(self, version: int, timeout_s: float) -> Any:
        """The value once its version is `version` or later; Unreachable after the timeout."""
        until = time.monotonic() + timeout_s
        while self.version < version:
            left = until - time.monotonic()
            if left <= 0:
                raise Unreachable(
                    f"version {version} did not come, {self.version} is the newest",
                    where=f"topic {self.topic}",
                    do="See whether its publisher lives: `spar services list`",
                )
            self._look(min(left, WAIT_S))
        return self.value

    @abstractmethod
    def close(self) -> None:
        """Listen no more; the value stays."""

    @abstractmethod
    def _look(self, timeout_s: float) -> None:
        """Take the newest version if there is a newer one, or if it comes in time."""


class Publisher(TopicWriter):
    """It is also the service that mirrors on other machines read the topic from."""

    def __init__(self, topic: str, discovery: Discovery, service: str = "") -> None:
        self._since_s, self._version = time.time(), -1
        self._lock = threading.Lock()
        self._server = Server(self, discovery, name=service or service_of(topic)).start()
        self._values = ValueServer(_socket_of(self._server.address))

    def publish(self, value: Any, version: int | None = None) -> int:
        with self._lock:
            version = next_version(self._version, version)
            self._values.put(0, version, value)
            self._version = version
            return version

    @register(idempotent=True)
    def newest(self, since_s: float, after: int) -> Any:
        """[since_s, version, value] where that is news to a reader that knows a publisher's start and a version."""
        with self._lock:
            if self._version < 0 or (since_s == self._since_s and after >= self._version):
                return None
            return [self._since_s, *self._values.newest(0)]

    def close(self) -> None:
        self._server.close()
        self._values.close()


class Subscription(TopicReader):
    """Arrays are views of memory that all readers on the machine share, and cannot be written."""

    def __init__(self, topic: str, discovery: Discovery, wait_s: float = 0.0) -> None:
        super().__init__(topic, wait_s)
        self._service, self._discovery = service_of(topic), discovery
        self._reader: ValueReader | None = None
        self._source, self._looked_s = "", 0.0  # the publisher, and when it was last looked for
        self._mirror: Mirror | None = None

    def close(self) -> None:
        for one in (self._reader, self._mirror):
            if one is not None:
                one.close()
        self._reader = self._mirror = None

    def _look(self, timeout_s: float) -> None:
        reader = self._connected()
        if reader is None:
            time.sleep(min(timeout_s, 0.05))
            return
        try:
            found = reader.read(0, self.version, timeout_s)
        except OSError:
            reader.close()
            self._reader = None
            return
        if found is not None:
            self.version, self.value = found[0], read_value(found[1])

    def _connected(self) -> ValueReader | None:
        """A connection to the latest publisher, or to its mirror here; the old one where there is none."""
        now = time.monotonic()
        if self._reader is not None and now - self._looked_s < LOOK_S:
            return self._reader
        self._looked_s = now
        found = self._find()
        if found is None or (self._reader is not None and found.id == self._source):
            return self._reader
        try:
            reader = ValueReader(_socket_of(found.address), 1.0)
        except OSError:
            return self._reader
        if self._reader is not None:
            self._reader.close()
        if found.id != self._source:
            self.version = -1  # another publisher counts from its own beginning
        self._reader, self._source = reader, found.id
        return reader

    def _find(self) -> Instance | None:
        latest = _latest(self._discovery, self._service)
        if latest is None or latest.address.startswith("ipc://"):
            return latest
        local = local_part(self._discovery)
        if self._mirror is None and (mirrored := _latest(local, MIRROR + self._service)) is not None:
            return mirrored
        if self._mirror is None:
            self._mirror = open_mirror(self.topic, self._discovery)
        return _latest(local, MIRROR + self._service)


def _latest(discovery: Discovery, service: str) -> Instance | None:
    return max(discovery.instances(service), key=lambda one: one.since_s, default=None)


def _socket_of(address: str) -> Path:
    return Path(address.removeprefix("ipc://")).with_suffix(".topic")


def local_part(discovery: Discovery) -> Local:
    """The part of a discovery that is this machine's."""
    local = getattr(discovery, "local", None)
    if not isinstance(local, Local):
        do = "Hand values to instances by the host: host.share(…)"
        raise ConfigError("topics are not known there", where=type(discovery).__name__, do=do)
    return local


def open_mirror(topic: str, discovery: Discovery) -> "Mirror | None":
    """Begin to mirror a topic of another machine; None where a process of this machine does so already. A mirror holds
    a lock on a file, which the kernel releases with the process; then the next subscriber mirrors."""
    path = local_part(discovery).folder / f"{MIRROR}{service_of(topic)}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return Mirror(topic, discovery, handle)


class Mirror:
    """Fetches a topic of another machine once for all its subscribers here, in a thread, and publishes it here."""

    def __init__(self, topic: str, discovery: Discovery, handle: int) -> None:
        self._topic, self._discovery, self._handle = topic, discovery, handle
        self._publisher: Publisher | None = None
        self._since_s, self._version = 0.0, -1
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fetch, name=f"{MIRROR}{topic}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let another subscriber mirror."""
        self._closed.set()
        self._thread.join(STOP_S)
        if self._publisher is not None:
            self._publisher.close()
        os.close(self._handle)

    def _fetch(self) -> None:
        service = service_of(self._topic)
        with Solver(self._discovery) as solver:
            while not self._closed.wait(POLL_S):
                with suppress(Unreachable):  # subscribers keep the values that they hold
                    if self._discovery.instances(service):  # else a call would wait for one
                        found = solver.retrieve(service, "newest", self._since_s, self._version)
                        if found is not None and found[0] >= self._since_s:  # of two publishers the later one counts
                            self._show(*found)

    def _show(self, since_s: float, version: int, value: Any) -> None:
        if self._publisher is not None and since_s != self._since_s:
            self._publisher.close()  # another publisher counts from its own beginning
            self._publisher = None
        if self._publisher is None:
            self._publisher = Publisher(self._topic, local_part(self._discovery), MIRROR + service_of(self._topic))
        self._publisher.publish(value, version)
        self._since_s, self._version = since_s, version
