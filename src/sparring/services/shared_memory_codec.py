"""A value (plain data and arrays) as one piece of unnamed memory: what topics publish, and what hosts share."""

import mmap
import os
import struct
from typing import Any

from sparring.services import frames
from sparring.services.frames import ANSWER, Codec, Head
from sparring.services.shared_memory import unnamed

_LENGTH = struct.Struct("<q")


def written(value: Any) -> tuple[int, int]:
    """A descriptor of memory that holds the value, and how many bytes of it."""
    said = Codec().encode(Head(frames.VERSION, ANSWER, 0, "", 0.0, value))
    length = sum(_LENGTH.size + len(part) for part in said)
    handle = unnamed(max(1, length))
    with mmap.mmap(handle, max(1, length)) as memory:
        for part in said:
            memory.write(_LENGTH.pack(len(part)))
            memory.write(part)
    return handle, length


def mapped(handle: int, length: int) -> mmap.mmap:
    """That memory, to be read; the descriptor is closed, also where that fails."""
    try:
        return mmap.mmap(handle, max(1, length), access=mmap.ACCESS_READ)
    finally:
        os.close(handle)


def read(memory: mmap.mmap, length: int) -> Any:
    """The value in it; its arrays are read-only views that keep the memory."""
    view = memoryview(memory)
    parts, start = [], 0
    while start < length:
        (size,) = _LENGTH.unpack_from(view, start)
        start += _LENGTH.size
        parts.append(view[start : start + size])
        start += size
    return Codec().decode(parts).body
