"""Topics: the latest value by name, with a version.

    publisher ─► one unnamed piece of memory for each version ─► every subscriber of the machine looks at that one
        └─ tcp ─► one mirror for each other machine ─► the same there

Publishing is one copy, whoever listens: subscribers are sent a descriptor, which takes microseconds, and one that is
slow or dead costs nothing. A subscriber takes what is newest (async) or waits for a version (sync), as it was opened.
Of two publishers of a topic the later one counts: a learner that was started again takes over from one that hangs.
"""

import socket
import time
from pathlib import Path

from sparring.services.discovery import Discovery, Instance
from sparring.services.publisher import ASK, MIRROR, TOLD, Publisher, service_of
from sparring.services.shared_memory_codec import mapped, read
from sparring.services.topic_mirror import Mirror, mirror, near_of
from sparring.services.topic_reader import TopicReader

__all__ = ["Publisher", "Subscription"]
LOOK_S = 0.5  # how often a subscriber looks whether another publisher has come


class Subscription(TopicReader):
    """Arrays are views of the memory that all readers of the machine share, and cannot be written."""

    def __init__(self, topic: str, discovery: Discovery, wait_s: float = 0.0) -> None:
        super().__init__(topic, wait_s)
        self._service, self._discovery = service_of(topic), discovery
        self._line: socket.socket | None = None
        self._asked = False
        self._source, self._looked = "", 0.0  # who is listened to, and when that was last thought about
        self._mirror: Mirror | None = None

    def close(self) -> None:
        """Listen no more; the value stays."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None

    def _look(self, timeout_s: float) -> None:
        """Take the newest version if there is a newer one, or if it comes in time."""
        line = self._connected()
        if line is None:
            time.sleep(min(timeout_s, 0.05))
            return
        try:
            if not self._asked:
                line.sendall(ASK.pack(self.version))
                self._asked = True
            line.settimeout(max(timeout_s, 0.001))
            said, handles, _, _ = socket.recv_fds(line, TOLD.size, 1)
        except TimeoutError:
            return
        except OSError:
            said, handles = b"", []
        if len(said) != TOLD.size or len(handles) != 1:
            line.close()
            self._line, self._asked = None, False
            return
        self._asked = False
        version, length = TOLD.unpack(said)
        self.value, self.version = read(mapped(handles[0], length), length), version

    def _connected(self) -> socket.socket | None:
        """A line to the latest publisher, or to who mirrors it; the old one where there is none."""
        now = time.monotonic()
        if self._line is not None and now - self._looked < LOOK_S:
            return self._line
        self._looked = now
        found = self._find()
        if found is None or (self._line is not None and found.id == self._source):
            return self._line
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(1.0)
        try:
            line.connect(str(Path(found.address.removeprefix("ipc://")).with_suffix(".topic")))
        except OSError:
            line.close()
            return self._line
        if self._line is not None:
            self._line.close()
        if found.id != self._source:
            self.version = -1  # another publisher counts anew
        self._line, self._asked, self._source = line, False, found.id
        return line

    def _find(self) -> Instance | None:
        latest = _latest(self._discovery, self._service)
        if latest is None or latest.address.startswith("ipc://"):
            return latest
        near = near_of(self._discovery)
        if self._mirror is None and (mirrored := _latest(near, MIRROR + self._service)) is not None:
            return mirrored
        if self._mirror is None:
            self._mirror = mirror(self.topic, self._discovery)
        return _latest(near, MIRROR + self._service)


def _latest(discovery: Discovery, service: str) -> Instance | None:
    there = [one for one in discovery.instances(service) if discovery.alive(one)]
    return max(there, key=lambda one: one.since_s, default=None)
