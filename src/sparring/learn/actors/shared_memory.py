"""Memory that processes share: arrays in an unlinked file, inherited by its descriptor, and a ring buffer in them.

The file has no name that could stay behind: when the last process that holds it ends, however it ends, it is gone.

    writer ─ to_write() … commit() ─► │ slot │ slot │ slot │ ─► to_read() … release() ─ reader

The ring buffer is written and read in place, and a writer waits where it is full. Both sides count in the shared memory
what they did; a slot belongs to the writer until it is committed and to the reader until it is released, so a process
that dies in the middle leaves nothing half-written to be read. Several writers may share the columns of a ring buffer,
each with counts of its own.
"""

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Mapping

import numpy as np

from sparring.errors import StoreFailed
from sparring.learn.actors.wakeup import Wakeup
from sparring.wire.chunk import Array

Layout = Mapping[str, tuple[str, tuple[int, ...]]]  # name → dtype and shape

_ALIGN = 64  # bytes: a line of the cache, so that two arrays never share one
_LINE = 8  # int64s in a line of the cache: the counts of two processes never share one
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
        """A new block, all of it there: a full memory is an error now, not a signal in mid-game."""
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


class RingBuffer:
    """`slots` times the columns of `layout`, and for each writer how many slots were written and read."""

    def __init__(self, layout: Layout, slots: int, writers: int = 1, descriptor: int | None = None) -> None:
        columns = {name: (dtype, (slots, *shape)) for name, (dtype, shape) in layout.items()}
        whole: Layout = {"_written": ("int64", (writers, _LINE)), "_read": ("int64", (writers, _LINE)), **columns}
        self.block = SharedArrays.create(whole) if descriptor is None else SharedArrays(descriptor, whole)
        self._written, self._read = (self.block.arrays.pop(name) for name in ("_written", "_read"))
        self._slots = slots

    def room(self, writer: int = 0) -> bool:
        """Whether the writer has a slot."""
        return int(self._written[writer, 0] - self._read[writer, 0]) < self._slots

    def ready(self, writer: int = 0) -> int:
        """How many slots wait for the reader."""
        return int(self._written[writer, 0] - self._read[writer, 0])

    def to_write(self, writer: int = 0) -> dict[str, Array]:
        """The columns of the slot to be written next, as they are in memory."""
        return self._slot(int(self._written[writer, 0]))

    def to_read(self, writer: int = 0) -> dict[str, Array]:
        """The columns of the oldest slot that waits; good until it is released."""
        fence()
        return self._slot(int(self._read[writer, 0]))

    def commit(self, writer: int = 0) -> None:
        """What was written may be read."""
        fence()
        self._written[writer, 0] += 1

    def release(self, writer: int = 0) -> None:
        """What was read may be written over."""
        fence()
        self._read[writer, 0] += 1

    def rewind(self, writer: int) -> None:
        """Forget what waits of a writer that died; its successor begins where the others read."""
        self._written[writer, 0] = self._read[writer, 0]

    def wait_for_room(self, wakeup: Wakeup, timeout_s: float, writer: int = 0) -> bool:
        """Sleep until there is a slot to write; False if there is none in time, or the reader is gone."""
        until = time.monotonic() + timeout_s
        while not self.room(writer):
            left = until - time.monotonic()
            if left <= 0 or wakeup.gone:
                return False
            wakeup.wait(left)
        return True

    def close(self) -> None:
        """Let go of the memory."""
        self.block.close()
        del self._written, self._read

    def _slot(self, count: int) -> dict[str, Array]:
        return {name: column[count % self._slots] for name, column in self.block.arrays.items()}


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _size(layout: Layout) -> int:
    sizes = (int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for dtype, shape in layout.values())
    return max(1, sum(map(_padded, sizes)))


def _reserve(descriptor: int, size: int) -> None:
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):  # macOS has none, and no memory file system that could be full either
        os.posix_fallocate(descriptor, 0, size)
