"""Topics: the latest value by name, with a version.

    publisher ─► one unnamed piece of memory for each version ─► every subscriber of the machine looks at that one

Publishing is one copy, whoever listens: subscribers are sent a descriptor, which takes microseconds, and one that is
slow or dead costs nothing. A subscriber may take what is newest (async) or wait for a version (sync). From another
machine a topic is read with an ordinary call.
"""

import contextlib
import mmap
import os
import selectors
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any, Self

from sparring.errors import ConfigError, Unreachable
from sparring.services import frames
from sparring.services.arena import unnamed
from sparring.services.discovery import Discovery, Instance
from sparring.services.frames import ANSWER, Head, codec
from sparring.services.register import register
from sparring.services.server import Server
from sparring.services.solver import Solver

_ASK = struct.Struct("<q")  # the version that is known already
_TOLD = struct.Struct("<qq")  # a version, and its bytes
_LENGTH = struct.Struct("<q")
PREFIX = "topic-"


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
    def newest(self, after: int) -> Any:
        """[version, value] where it is newer than `after`, else None."""
        return self._publisher.newest(after)


class Publisher:
    """The one writer of a topic."""

    def __init__(self, topic: str, discovery: Discovery) -> None:
        self._version, self._value, self._handle, self._length = -1, None, -1, 0
        self._lock = threading.Lock()
        self._server = Server(_Far(self), discovery, name=service_of(topic)).start()
        self._path = Path(self._server.address.removeprefix("ipc://")).with_suffix(".topic")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(self._path))
        self._listening.listen(128)
        self._listening.setblocking(False)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._lines: set[socket.socket] = set()  # of all subscribers
        self._waiting: dict[socket.socket, int] = {}  # subscriber → the version that it knows
        self._stopping = False
        self._thread = threading.Thread(target=self._listen, name=f"topic-{topic}", daemon=True)
        self._thread.start()

    def publish(self, value: Any, version: int | None = None) -> int:
        """Show `value` (plain data and arrays) to all; its version, one more than the last unless it is given."""
        said = codec().encode(Head(frames.VERSION, ANSWER, 0, "", 0.0, value))
        length = sum(_LENGTH.size + len(part) for part in said)
        handle = unnamed(max(1, length))
        with mmap.mmap(handle, max(1, length)) as memory:
            for part in said:
                memory.write(_LENGTH.pack(len(part)))
                memory.write(part)
        with self._lock:
            if version is not None and version <= self._version:
                os.close(handle)
                raise ConfigError(f"version {version} after {self._version}", where="topic", do="Count upwards")
            if self._handle >= 0:
                os.close(self._handle)
            self._version = self._version + 1 if version is None else version
            self._value, self._handle, self._length = value, handle, length
            published = self._version
        self._wake.send(b"!")
        return published

    def newest(self, after: int) -> Any:
        """[version, value] where it is newer than `after`, else None."""
        with self._lock:
            return [self._version, self._value] if self._version > after else None

    def close(self) -> None:
        """The topic ends; what subscribers hold they keep."""
        self._stopping = True
        self._wake.send(b"!")
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
            said = line.recv(_ASK.size)
        except OSError:
            said = b""
        if len(said) == _ASK.size:
            (self._waiting[line],) = _ASK.unpack(said)
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
                        socket.send_fds(line, [_TOLD.pack(self._version, self._length)], [self._handle])


class Subscription:
    """A reader of a topic. It holds the newest value that it has seen, without a copy where it is of this machine."""

    def __init__(self, topic: str, discovery: Discovery) -> None:
        self.topic, self._service, self._discovery = topic, service_of(topic), discovery
        self.version, self.value = -1, None
        self._line: socket.socket | None = None
        self._asked = False
        self._far: Solver | None = None

    def newest(self, timeout_s: float = 0.0) -> Any:
        """The newest value there is now (async); waits only where none was ever seen, at most so long."""
        self._look(0.0 if self.version >= 0 else timeout_s)
        return self.value

    def at_least(self, version: int, timeout_s: float) -> Any:
        """The value once its version is `version` or later (sync); Unreachable after the timeout."""
        until = time.monotonic() + timeout_s
        while self.version < version:
            left = until - time.monotonic()
            if left <= 0:
                raise Unreachable(
                    f"version {version} did not come, {self.version} is the newest",
                    where=f"topic {self.topic}",
                    do="See whether its publisher lives: `spar services list`",
                )
            self._look(min(left, 0.25))
        return self.value

    def close(self) -> None:
        """Listen no more; the value stays."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._far is not None:
            self._far.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, timeout_s: float) -> None:
        """Take the newest version if there is a newer one, or if it comes in time."""
        line = self._line or self._connect(timeout_s)
        if line is None:
            return
        try:
            if not self._asked:
                line.sendall(_ASK.pack(self.version))
                self._asked = True
            line.settimeout(max(timeout_s, 0.001))
            said, handles, _, _ = socket.recv_fds(line, _TOLD.size, 1)
        except TimeoutError:
            return
        except OSError:
            said, handles = b"", []
        if len(said) != _TOLD.size or len(handles) != 1:
            line.close()
            self._line, self._asked = None, False
            return
        self._asked = False
        version, length = _TOLD.unpack(said)
        self.value, self.version = _read(handles[0], length), version

    def _connect(self, timeout_s: float) -> socket.socket | None:
        instance = next(iter(self._discovery.instances(self._service)), None)
        if instance is None:
            time.sleep(min(timeout_s, 0.05))
            return None
        if not instance.address.startswith("ipc://"):
            self._ask_far(instance, timeout_s)
            return None
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(1.0)
        try:
            line.connect(str(Path(instance.address.removeprefix("ipc://")).with_suffix(".topic")))
        except OSError:
            line.close()
            time.sleep(min(timeout_s, 0.05))
            return None
        self._line, self._asked = line, False
        return line

    def _ask_far(self, instance: Instance, timeout_s: float) -> None:
        if self._far is None:
            self._far = Solver(self._discovery)
        found = self._far.retrieve(instance.service, "newest", self.version)
        if found is not None:
            self.version, self.value = found
        else:
            time.sleep(min(timeout_s, 0.05))


def _read(handle: int, length: int) -> Any:
    """The value in a piece of memory; its arrays are read-only views that keep it."""
    memory = memoryview(mmap.mmap(handle, max(1, length), access=mmap.ACCESS_READ))
    os.close(handle)
    parts, start = [], 0
    while start < length:
        (size,) = _LENGTH.unpack_from(memory, start)
        start += _LENGTH.size
        parts.append(memory[start : start + size])
        start += size
    return codec().decode(parts).body
