"""A topic of another machine, brought here once for all who read it: its first reader fetches and publishes it anew.

Whoever mirrors holds a lock on a file, which the kernel takes away with the process; then the next reader does it.
"""

import fcntl
import os
import threading
from typing import Any, Protocol, runtime_checkable

from sparring.errors import ConfigError, Unreachable
from sparring.services.discovery import Discovery, Local
from sparring.services.publisher import MIRROR, Publisher, service_of
from sparring.services.solver import Solver

POLL_S, AGAIN_S, DEADLINE_S = 0.02, 0.2, 10.0


@runtime_checkable
class Near(Protocol):
    """A discovery of several machines that knows its own."""

    @property
    def near(self) -> Local: ...


def near_of(discovery: Discovery) -> Local:
    """The part of a discovery that is this machine's; one with instances elsewhere has it."""
    if not isinstance(discovery, Near):
        do = "Hand values to instances by the host: host.share(…)"
        raise ConfigError("topics are not known there", where=type(discovery).__name__, do=do)
    return discovery.near


def mirror(topic: str, discovery: Discovery) -> "Mirror | None":
    """Begin to mirror, unless somebody on this machine does; None then."""
    near = near_of(discovery)
    path = near.folder / f"{MIRROR}{service_of(topic)}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return Mirror(topic, discovery, handle)


class Mirror:
    """Fetches in a thread of its own until it is closed."""

    def __init__(self, topic: str, discovery: Discovery, handle: int) -> None:
        self._topic, self._discovery, self._handle = topic, discovery, handle
        self._publisher: Publisher | None = None
        self._since_s, self._version = 0.0, -1
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fetch, name=f"{MIRROR}{topic}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The next reader may do it."""
        self._closed.set()
        self._thread.join(DEADLINE_S)
        if self._publisher is not None:
            self._publisher.close()
        os.close(self._handle)

    def _fetch(self) -> None:
        service = service_of(self._topic)
        with Solver(self._discovery) as solver:
            patient = solver.within(DEADLINE_S)
            while not self._closed.is_set():
                try:
                    found = None
                    if self._discovery.instances(service):  # else a call would wait for one
                        found = patient.retrieve(service, "newest", self._since_s, self._version)
                except Unreachable:  # who has a value keeps it
                    self._closed.wait(AGAIN_S)
                    continue
                if found is None or found[0] < self._since_s:  # of two publishers the later one counts
                    self._closed.wait(POLL_S)
                else:
                    self._show(*found)

    def _show(self, since_s: float, version: int, value: Any) -> None:
        if self._publisher is not None and since_s != self._since_s:
            self._publisher.close()  # another publisher counts anew
            self._publisher = None
        if self._publisher is None:
            service = MIRROR + service_of(self._topic)
            self._publisher = Publisher(self._topic, near_of(self._discovery), service)
        self._publisher.publish(value, version)
        self._since_s, self._version = since_s, version
