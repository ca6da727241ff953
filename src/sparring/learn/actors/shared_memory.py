"""Memory that processes share: arrays in an unlinked file, inherited by its descriptor, a ring buffer in them, and a
wakeup between two processes.

The file has no name that could stay behind: when the last process that holds it ends, however it ends, it is gone.

    writer ─ to_write() … commit() ─► │ slot │ slot │ slot │ ─► to_read() … release() ─ reader

The ring buffer is written and read in place, and a writer waits where it is full. Both sides count in the shared memory
what they did; a slot belongs to the writer until it is committed and to the reader until it is released, so a process
that dies in the middle leaves nothing half-written to be read.
"""

import mmap
import os
import select
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from sparring.errors import StoreFailed
from sparring.wire.chunk import Array

Layout = Mapping[str, tuple[str, tuple[int, ...]]]  # name → dtype and shape

_ALIGN = 64  # bytes: a line of the cache, so that two arrays never share one
_LINE = 8  # int64s in a line of the cache: the counts of two processes never share one
_ATTACHED = struct.Struct("<qq")  # version + 1 and length of what is behind the arrays
_SHARED = "/dev/shm"
_BYTES = 4096  # of one read of a wakeup's socket
SLEEP_S = 3600.0  # of one sleep, which a wakeup or the end of standard input ends, not the clock

_first, _second = threading.Lock(), threading.Lock()


class SharedArrays:
    """Arrays by name, zeros at first, seen by every process that has the descriptor and the same layout."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        """Map the block behind a descriptor, which belongs to this from now on."""
        self.descriptor, self._size = descriptor, _size(layout)
        self.arrays: dict[str, Array] = {}
        memory = mmap.mmap(descriptor, self._size)
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

    def attach(self, version: int, content: bytes) -> None:
        """Leave bytes of any length behind the arrays, instead of those that were there; one process alone may."""
        os.pwrite(self.descriptor, content, self._size + _ATTACHED.size)
        os.pwrite(self.descriptor, _ATTACHED.pack(version + 1, len(content)), self._size)  # last: it is whole

    def attached(self, version: int) -> bytes | None:
        """What was attached with that version; None where nothing was, or with another."""
        head = os.pread(self.descriptor, _ATTACHED.size, self._size)
        found, length = _ATTACHED.unpack(head) if head else (0, 0)
        return os.pread(self.descriptor, length, self._size + _ATTACHED.size) if found == version + 1 else None

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
    """`slots` times the columns of `layout`, and how many slots were written and read."""

    def __init__(self, layout: Layout, slots: int, descriptor: int | None = None) -> None:
        columns = {name: (dtype, (slots, *shape)) for name, (dtype, shape) in layout.items()}
        whole: Layout = {"_written": ("int64", (_LINE,)), "_read": ("int64", (_LINE,)), **columns}
        self.block = SharedArrays.create(whole) if descriptor is None else SharedArrays(descriptor, whole)
        self._written, self._read = (self.block.arrays.pop(name) for name in ("_written", "_read"))
        self._slots = slots

    def room(self) -> bool:
        """Whether the writer has a slot."""
        return self.ready() < self._slots

    def ready(self) -> int:
        """How many slots wait for the reader."""
        return int(self._written[0] - self._read[0])

    def to_write(self) -> dict[str, Array]:
        """The columns of the slot to be written next, as they are in memory."""
        return self._slot(int(self._written[0]))

    def to_read(self) -> dict[str, Array]:
        """The columns of the oldest slot that waits; good until it is released."""
        fence()
        return self._slot(int(self._read[0]))

    def commit(self) -> None:
        """What was written may be read."""
        fence()
        self._written[0] += 1

    def release(self) -> None:
        """What was read may be written over."""
        fence()
        self._read[0] += 1

    def close(self) -> None:
        """Let go of the memory."""
        self.block.close()
        del self._written, self._read

    def _slot(self, count: int) -> dict[str, Array]:
        return {name: column[count % self._slots] for name, column in self.block.arrays.items()}


class Wakeup:
    """One side of a socket: a byte wakes the other side, and its end of file says that the other side is gone. The byte
    only ends a wait: what has changed is in shared memory."""

    def __init__(self, one: socket.socket) -> None:
        one.setblocking(False)
        self._socket = one
        self.gone = False  # the other side has ended
        self.first_heard_s: float | None = None  # when its first byte came

    @classmethod
    def pair(cls) -> tuple["Wakeup", socket.socket]:
        """Our side, and the socket that the other process inherits; close that one once it has."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def ring(self) -> None:
        """Wake the other side; where it has unread bytes it needs no more of them."""
        with suppress(BlockingIOError):
            try:
                self._socket.send(b"!")
            except (BrokenPipeError, ConnectionError):
                self.gone = True

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Sleep until the condition holds, looking whenever a byte comes; False where the other side is gone before."""
        while not condition():
            if self.gone:
                return False
            wait_any((self,), SLEEP_S)
        return True

    def hear(self) -> None:
        """Read the bytes that came."""
        with suppress(BlockingIOError):
            try:
                while data := self._socket.recv(_BYTES):
                    if self.first_heard_s is None:
                        self.first_heard_s = time.monotonic()
                    if len(data) < _BYTES:
                        return
                self.gone = True
            except ConnectionError:
                self.gone = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def wait_any(wakeups: Sequence[Wakeup], timeout_s: float) -> None:
    """Sleep until a byte comes on one of them or its other side is gone, at most so long; what came is read."""
    poll = select.poll()
    by_descriptor = {wakeup.fileno(): wakeup for wakeup in wakeups if not wakeup.gone}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000):
        by_descriptor[descriptor].hear()


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _size(layout: Layout) -> int:
    sizes = (int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for dtype, shape in layout.values())
    return max(1, sum(map(_padded, sizes)))


def _reserve(descriptor: int, size: int) -> None:
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):  # macOS has none, and no memory file system that could be full either
        os.posix_fallocate(descriptor, 0, size)
