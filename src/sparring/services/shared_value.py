"""A value that is put once and looked at by many processes of one machine: unnamed memory, given out by its owner.

The owner listens at a Unix socket and hands the descriptor to whoever asks for the value's number. In a message the
value stands as that place; whoever decodes the message sees the value itself, its arrays being views of the one memory.
"""

import mmap
import os
import socket
import struct
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from sparring.services import frames
from sparring.services.shared_memory_codec import mapped, read, written

PATIENCE_S = 1.0  # of the owner, who serves others too
ANSWER_S = 20.0  # of who asks: a dead owner is noticed at once, and a living one may be starting a hundred processes
_NUMBER = struct.Struct("<q")
_TOLD = struct.Struct("<q")  # the bytes behind the descriptor


class _Place(msgspec.Struct, array_like=True):
    path: str
    number: int


class SharedValue:
    """One value; as a part of a message it stands for the value. Its memory goes when this and all views are gone."""

    def __init__(self, place: bytes, handle: int, length: int) -> None:
        self._place, self.handle, self.length = place, handle, length
        self._closing = weakref.finalize(self, os.close, handle)

    def __place__(self) -> tuple[int, bytes]:
        """How it stands in a message."""
        return frames.KEPT, self._place

    def value(self) -> Any:
        """The value, as others see it."""
        return read(mmap.mmap(self.handle, max(1, self.length), access=mmap.ACCESS_READ), self.length)


class SharedValues:
    """The owner's side: `keep` puts a value, `serve` answers one who asks (when `fileno` is readable)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: weakref.WeakValueDictionary[int, SharedValue] = weakref.WeakValueDictionary()
        self._numbers = 0
        self._lock = threading.Lock()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(128)
        self._listening.setblocking(False)

    def fileno(self) -> int:
        return self._listening.fileno()

    def keep(self, value: Any) -> SharedValue:
        """Put a value (plain data and arrays): one copy, whoever looks at it."""
        handle, length = written(value)
        with self._lock:
            self._numbers += 1
            kept = SharedValue(msgspec.msgpack.encode(_Place(str(self._path), self._numbers)), handle, length)
            self._kept[self._numbers] = kept
        return kept

    def serve(self) -> None:
        """Hand a descriptor to one who asks; who asks for nonsense, or too slowly, goes without."""
        with suppress(OSError, struct.error):
            line, _ = self._listening.accept()
            with line:
                line.settimeout(PATIENCE_S)
                kept = self._kept.get(_NUMBER.unpack(line.recv(_NUMBER.size))[0])
                if kept is not None:
                    socket.send_fds(line, [_TOLD.pack(kept.length)], [kept.handle])

    def close(self) -> None:
        """Nobody is given anything any more; what they hold they keep."""
        self._listening.close()
        with suppress(FileNotFoundError):
            self._path.unlink()


_seen: "weakref.WeakValueDictionary[bytes, mmap.mmap]" = weakref.WeakValueDictionary()  # by place
_lock = threading.Lock()


def opened(data: memoryview) -> Any:
    """The value at a place; LookupError where it is not kept any more."""
    place = bytes(data)
    with _lock:
        memory = _seen.get(place)
        if memory is None:
            memory = _seen[place] = _asked_for(msgspec.msgpack.decode(place, type=_Place))
    return read(memory, len(memory))


def _asked_for(place: _Place) -> mmap.mmap:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(ANSWER_S)
            line.connect(place.path)
            line.sendall(_NUMBER.pack(place.number))
            said, handles, _, _ = socket.recv_fds(line, _TOLD.size, 1)
    except OSError as error:
        raise LookupError(f"a kept value cannot be had: {error}") from None
    if len(said) != _TOLD.size or len(handles) != 1:
        raise LookupError("a kept value is gone")
    return mapped(handles[0], _TOLD.unpack(said)[0])


frames.EXTENSIONS[frames.KEPT] = opened
