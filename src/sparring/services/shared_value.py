"""Values (plain data and arrays) that processes of one machine read from the same memory: topics publish them, hosts
share them.

A value is one piece of unnamed memory. Its owner listens at a Unix socket and sends the memory's descriptor to each
process that asks for the value's key; with a version, once the value is newer than that. In a message a shared value
stands as its socket and key: the receiver sees the value itself, its arrays being read-only views of the one memory.
"""

import itertools
import mmap
import os
import socket
import struct
import threading
import weakref
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from sparring.services import frames
from sparring.services.frames import ANSWER, Codec, Head
from sparring.services.shared_memory import DescriptorServer, unnamed_memory

ANSWER_S = 20.0  # a dead owner is noticed at once, and a living one may be starting a hundred processes
_LENGTH = struct.Struct("<q")
_REQUEST = struct.Struct("<qq")  # a key, and the version that the reader has
_REPLY = struct.Struct("<qq")  # the version and length of the memory that is attached; -1: there is no such key


def write_value(value: Any) -> tuple[int, int]:
    """A descriptor of memory that holds the value, and how many bytes of it."""
    parts = Codec().encode(Head(frames.VERSION, ANSWER, 0, "", 0.0, value))
    length = sum(_LENGTH.size + len(part) for part in parts)
    handle = unnamed_memory(length)
    with mmap.mmap(handle, length) as memory:
        for part in parts:
            memory.write(_LENGTH.pack(len(part)))
            memory.write(part)
    return handle, length


def read_value(memory: mmap.mmap) -> Any:
    """The value in it; its arrays are read-only views that keep the memory."""
    view = memoryview(memory)
    parts, start = [], 0
    while start < len(view):
        (size,) = _LENGTH.unpack_from(view, start)
        start += _LENGTH.size
        parts.append(view[start : start + size])
        start += size
    return Codec().decode(parts).body


def map_memory(handle: int, length: int) -> mmap.mmap:
    """That memory, to be read; the descriptor is closed, also where that fails."""
    try:
        return mmap.mmap(handle, length, access=mmap.ACCESS_READ)
    finally:
        os.close(handle)


class ValueServer(DescriptorServer):
    """The owner's side: values by key. A slow or dead reader costs nothing."""

    def __init__(self, path: Path) -> None:
        self._values: dict[int, tuple[int, int, int]] = {}  # key → version, descriptor, length
        self._waiting: dict[socket.socket, tuple[int, int]] = {}  # reader → key, version that it has
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        super().__init__(path)

    def share(self, value: Any) -> "SharedValue":
        """Put a value: one copy, however many processes read it. Its memory is given back when what is returned and all
        views are gone."""
        key = next(self._keys)
        self.put(key, 0, value)
        return SharedValue(self, self._path, key)

    def put(self, key: int, version: int, value: Any) -> None:
        """Show a value, instead of the one of that key."""
        handle, length = write_value(value)
        self.drop(key, (version, handle, length))
        self.wake()

    def drop(self, key: int, successor: tuple[int, int, int] | None = None) -> None:
        """Give its memory back; processes that read it keep it until they no longer do."""
        with self._lock:
            old = self._values.pop(key, None)
            if successor is not None:
                self._values[key] = successor
        if old is not None:
            os.close(old[1])

    def newest(self, key: int) -> tuple[int, Any]:
        """The version and the value, as it was put."""
        with self._lock:
            version, handle, length = self._values[key]
            handle = os.dup(handle)
        return version, read_value(map_memory(handle, length))

    def close(self) -> None:
        super().close()
        for key in list(self._values):
            self.drop(key)

    def _admits(self, connection: socket.socket) -> bool:
        connection.setblocking(False)
        return True

    def _hears(self, connection: socket.socket) -> bool:
        self._waiting.pop(connection, None)
        with suppress(OSError, struct.error):
            self._waiting[connection] = _REQUEST.unpack(connection.recv(_REQUEST.size))
        return connection in self._waiting

    def _answer(self) -> None:
        with self._lock:
            for reader, (key, known) in list(self._waiting.items()):
                version, handle, length = self._values.get(key, (-1, -1, 0))
                if version > known or (version < 0 and key):  # key 0 is a topic's, which may not have a value yet
                    del self._waiting[reader]
                    with suppress(OSError):  # a reader that does not read is not waited for
                        socket.send_fds(reader, [_REPLY.pack(version, length)], [handle] if handle >= 0 else [])


class ValueReader:
    """A connection to a ValueServer, for one thread. OSError where it is not there."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._asked = False
        try:
            self._socket.connect(str(path))
        except OSError:
            self.close()
            raise

    def read(self, key: int, known: int, timeout_s: float) -> tuple[int, mmap.mmap] | None:
        """A version after the known one, and its memory; None where it did not come in time, and where it comes later
        the next call has it. ConnectionError where the owner has ended or has no such key."""
        if not self._asked:
            self._socket.sendall(_REQUEST.pack(key, known))
            self._asked = True
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            said, handles, _, _ = socket.recv_fds(self._socket, _REPLY.size, 1)
        except TimeoutError:
            return None
        self._asked = False
        if len(said) != _REPLY.size or len(handles) != 1:
            raise ConnectionError("it is not there any more")
        version, length = _REPLY.unpack(said)
        return version, map_memory(handles[0], length)

    def close(self) -> None:
        self._socket.close()


class SharedValue:
    """A value of a ValueServer; as a part of a message it stands for the value."""

    def __init__(self, server: ValueServer, path: Path, key: int) -> None:
        self._place = msgspec.msgpack.encode((str(path), key))
        weakref.finalize(self, server.drop, key)

    def __place__(self) -> tuple[int, bytes]:
        """How it stands in a message."""
        return frames.SHARED_VALUE, self._place


_mapped: "weakref.WeakValueDictionary[bytes, mmap.mmap]" = weakref.WeakValueDictionary()  # by place
_lock = threading.Lock()


def open_shared_value(data: memoryview) -> Any:
    """The value at a place; LookupError where it is gone."""
    encoded = bytes(data)
    with _lock:
        memory = _mapped.get(encoded)
        if memory is None:
            path, key = msgspec.msgpack.decode(encoded, type=tuple[str, int])
            try:
                with closing(ValueReader(Path(path), ANSWER_S)) as reader:
                    found = reader.read(key, -1, ANSWER_S)
            except OSError as error:
                raise LookupError(f"a shared value is gone: {error}") from None
            if found is None:
                raise LookupError(f"a shared value did not come within {ANSWER_S:g} s")
            memory = _mapped[encoded] = found[1]
    return read_value(memory)
