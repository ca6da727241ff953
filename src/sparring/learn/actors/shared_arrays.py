"""Memory that processes share: an unlinked file, inherited by its descriptor, with arrays laid out in it.

Nothing has a name that could stay behind: when the last process that holds it ends, however it ends, it is gone.
"""

import mmap
import os
import tempfile
import threading
from collections.abc import Mapping

import numpy as np

from sparring.errors import StoreFailed
from sparring.wire.chunk import Array

Layout = Mapping[str, tuple[str, tuple[int, ...]]]  # name → dtype and shape

_ALIGN = 64  # bytes: a line of the cache, so that two arrays never share one
_SHARED = "/dev/shm"

_first, _second = threading.Lock(), threading.Lock()


class SharedArrays:
    """Arrays by name, zeros at first, seen by every process that has the descriptor and the same layout."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        """Map the block behind a descriptor, which belongs to this from now on."""
        self.descriptor = descriptor
        self.arrays: dict[str, Array] = {}
        memory = mmap.mmap(descriptor, _size(layout))
        start = 0
        for name, (dtype, shape) in layout.items():
            kind = np.dtype(dtype)
            count = int(np.prod(shape, dtype=np.int64))
            self.arrays[name] = np.frombuffer(memory, kind, count, start).reshape(shape)
            start += _padded(count * kind.itemsize)

    @classmethod
    def create(cls, layout: Layout) -> "SharedArrays":
        """A new block, all of it there: a memory that fills up is said now, not by a signal in mid-game."""
        size = _size(layout)
        for folder in (_SHARED, None):
            if folder is not None and not os.path.isdir(folder):
                continue
            with tempfile.TemporaryFile(dir=folder) as file:
                try:
                    _reserve(file.fileno(), size)
                except OSError as error:
                    wrong = error
                    continue
                return cls(os.dup(file.fileno()), layout)
        raise StoreFailed(
            f"{size:,} bytes of shared memory cannot be had: {wrong.strerror}",
            where=_SHARED,
            do="Free some, or use fewer --envs or --actors",
        )

    def close(self) -> None:
        """Give the descriptor back. The memory goes with the last array that looks at it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.arrays = {}


def fence() -> None:
    """What was stored before is seen before what is stored after, and the same for loads, on any processor.

    x86 keeps that order by itself; elsewhere a release followed by an acquire does.
    """
    with _first:
        pass
    with _second:
        pass


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _size(layout: Layout) -> int:
    sizes = (int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for dtype, shape in layout.values())
    return max(1, sum(map(_padded, sizes)))


def _reserve(descriptor: int, size: int) -> None:
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):  # macOS has none, and no memory file system that could be full either
        os.posix_fallocate(descriptor, 0, size)
