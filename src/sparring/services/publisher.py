"""The writer's side of a topic (topics.py): each version is one piece of memory, whose descriptor readers are sent."""

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Self

from sparring.errors import ConfigError
from sparring.services.discovery import Discovery
from sparring.services.register import register
from sparring.services.server import Server
from sparring.services.shared_memory_codec import mapped, read, written

ASK = struct.Struct("<q")  # the version that is known already
TOLD = struct.Struct("<qq")  # a version, and its bytes
PREFIX, MIRROR = "topic-", "mirror-"


def service_of(topic: str) -> str:
    """The service under which a topic is found; topics are named with slashes, files are not."""
    if not topic or not all(part.replace("-", "").replace("_", "").isalnum() for part in topic.split("/")):
        raise ConfigError(f"{topic!r} is no topic", where="topics", do='Name it like "weights/main"')
    return PREFIX + topic.replace("/", ".")


class _Far:
    """A topic for other machines."""

    def __init__(self, publisher: "Publisher") -> None:
        self._publisher = publisher

    @register(idempotent=True)
    def newest(self, since_s: float, after: int) -> Any:
        """[since_s, version, value] where that is not what is known by the publisher's beginning and a version."""
        return self._publisher.newest(since_s, after)


class Publisher:
    """The writer of a topic."""

    def __init__(self, topic: str, discovery: Discovery, service: str = "") -> None:
        self._since_s = time.time()
        self._version, self._handle, self._length = -1, -1, 0
        self._lock = threading.Lock()
        self._server = Server(_Far(self), discovery, name=service or service_of(topic)).start()
        self._path = Path(self._server.address.removeprefix("ipc://")).with_suffix(".topic")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(self._path))
        self._listening.listen(128)
        self._listening.setblocking(False)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._lines: set[socket.socket] = set()  # of all subscribers
        self._waiting: dict[socket.socket, int] = {}  # subscriber → the version that it knows
        self._stopping = False
        self._thread = threading.Thread(target=self._listen, name=f"topic-{topic}", daemon=True)
        self._thread.start()

    def publish(self, value: Any, version: int | None = None) -> int:
        """Show `value` (plain data and arrays) to all; its version, one more than the last unless it is given."""
        handle, length = written(value)
        with self._lock:
            if version is not None and version <= self._version:
                os.close(handle)
                raise ConfigError(f"version {version} after {self._version}", where="topic", do="Count upwards")
            if self._handle >= 0:
                os.close(self._handle)
            self._version = self._version + 1 if version is None else version
            self._handle, self._length = handle, length
            published = self._version
        self._rouse()
        return published

    def newest(self, since_s: float, after: int) -> Any:
        """[since_s, version, value] where that is not what is known, else None."""
        with self._lock:
            if self._version < 0 or (since_s == self._since_s and after >= self._version):
                return None
            handle, length, version = os.dup(self._handle), self._length, self._version
        return [
            self._since_s,
            version,
            read(mapped(handle, length), length),
        ]  # as it was published, whatever became of the original

    def _rouse(self) -> None:
        with contextlib.suppress(BlockingIOError):  # then it was roused often enough
            self._wake.send(b"!")

    def close(self) -> None:
        """The topic ends; what subscribers hold they keep."""
        self._stopping = True
        self._rouse()
        self._thread.join(3.0)
        self._server.close()
        for one in (self._listening, self._woken, self._wake, *self._lines):
            one.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._listening, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while not self._stopping:
                for key, _ in ready.select(1.0):
                    if key.fileobj is self._listening:
                        self._admit(ready)
                    elif key.fileobj is self._woken:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(4096)
                    else:
                        self._hear(ready, key.fileobj)  # type: ignore[arg-type]
                self._tell()

    def _admit(self, ready: selectors.BaseSelector) -> None:
        with contextlib.suppress(BlockingIOError):
            line, _ = self._listening.accept()
            line.setblocking(False)
            self._lines.add(line)
            ready.register(line, selectors.EVENT_READ)

    def _hear(self, ready: selectors.BaseSelector, line: socket.socket) -> None:
        try:
            said = line.recv(ASK.size)
        except OSError:
            said = b""
        if len(said) == ASK.size:
            (self._waiting[line],) = ASK.unpack(said)
        else:
            ready.unregister(line)
            self._waiting.pop(line, None)
            self._lines.discard(line)
            line.close()

    def _tell(self) -> None:
        with self._lock:
            for line, known in list(self._waiting.items()):
                if known < self._version:
                    del self._waiting[line]
                    with contextlib.suppress(OSError):  # whoever does not read is not waited for
                        socket.send_fds(line, [TOLD.pack(self._version, self._length)], [self._handle])
