"""Large arrays between two processes of one machine: through shared memory, the frame says only where they lie.

A sender has an arena, an unnamed file in memory cut into blocks of 64 kB. Its descriptor is handed to the other side
once, over a Unix socket, so that nothing has a name that could stay behind. An array takes as many blocks as it needs,
one after another. They belong to the receiver until the last array that looks at them is gone; then the flag of the
first falls, and the sender may fill them again. Where too few are free the array travels in a frame like any small one,
so that no sender ever waits for memory.

    [4096 flags][4096 blocks of 64 kB]
"""

import fcntl
import math
import mmap
import os
import socket
import tempfile
import threading
import weakref
from collections import deque
from functools import partial
from typing import Any

import numpy as np

from sparring.errors import WireError
from sparring.wire.chunk import Array

LARGE_BYTES = 64 << 10  # arrays below this are cheaper in a frame; also the size of a block
BLOCKS = 4096
ARENA_BYTES = LARGE_BYTES * BLOCKS  # of address space; memory is taken as it is used
_SWEPT = 8  # of the longest lent arrays, looked at before each new one


class Arena:
    """The sender's side. Threads may share one."""

    def __init__(self) -> None:
        self.id = int.from_bytes(os.urandom(7), "little")
        self.handle = unnamed_memory(LARGE_BYTES + ARENA_BYTES)
        self._memory = mmap.mmap(self.handle, LARGE_BYTES + ARENA_BYTES)
        self._used = bytearray(BLOCKS)
        self._lent: deque[tuple[int, int, bytes]] = deque()  # first block, how many, to whom; the longest lent first
        self._lock = threading.Lock()
        self.short = False  # for the last array too few blocks were free

    def put(self, flat: Array, to: bytes) -> int | None:
        """Copy a contiguous array into blocks for `to`; the number of the first, None where too few are free."""
        count = -(-flat.nbytes // LARGE_BYTES)
        with self._lock:
            number = -1
            if self.handle >= 0:
                self._sweep(_SWEPT)
                number = self._used.find(bytes(count))
                if number < 0:
                    self._sweep(len(self._lent))
                    number = self._used.find(bytes(count))
            self.short = number < 0
            if self.short:
                return None
            self._used[number : number + count] = b"\1" * count
            self._memory[number] = 1
            self._lent.append((number, count, to))
            place = np.frombuffer(self._memory, np.uint8, flat.nbytes, LARGE_BYTES * (number + 1))
        np.copyto(place, flat.reshape(-1).view(np.uint8))
        return number

    def forget(self, to: bytes) -> None:
        """The process that held blocks is dead: they are free, and their memory is given back to the system."""
        with self._lock:
            if self.handle >= 0:
                for number, _, holder in self._lent:
                    if holder == to:
                        self._memory[number] = 0
                self._sweep(len(self._lent), give_back=True)

    def held_bytes(self) -> int:
        """What receivers look at now."""
        with self._lock:
            return sum(LARGE_BYTES * count for number, count, _ in self._lent if self._memory[number])

    def close(self) -> None:
        """Give the memory back; a receiver that looks at blocks keeps them until it no longer does."""
        with self._lock:
            if self.handle >= 0:
                os.close(self.handle)
                self.handle = -1
                self._memory = mmap.mmap(-1, BLOCKS)  # a mapping has a handle

    def _sweep(self, most: int, *, give_back: bool = False) -> None:
        """Take back blocks whose flag has fallen, among so many of the longest lent."""
        for _ in range(min(most, len(self._lent))):
            lent = number, count, _ = self._lent.popleft()
            if self._memory[number]:
                self._lent.append(lent)
                continue
            self._used[number : number + count] = bytes(count)
            if give_back and hasattr(mmap, "MADV_REMOVE"):
                self._memory.madvise(mmap.MADV_REMOVE, LARGE_BYTES * (number + 1), LARGE_BYTES * count)


class Mapped:
    """The receiver's side of an arena. `connection` tells the sender that we live: it stays open while there are
    arrays, since with its end all blocks are free."""

    def __init__(self, handle: int, connection: socket.socket) -> None:
        try:
            _require_seal(handle)
            self._memory = mmap.mmap(handle, LARGE_BYTES + ARENA_BYTES)
        finally:
            os.close(handle)
        self._connection, self._closing = connection, False
        self._held: dict[int, weakref.ref[Any]] = {}

    def take(self, number: int, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
        """The array there, read-only, without a copy; its blocks are given back when the last view of it is gone."""
        count, offset = math.prod(shape), LARGE_BYTES * (number + 1)
        is_inside = 0 <= number < BLOCKS and offset + count * dtype.itemsize <= len(self._memory)
        if not is_inside or min(shape, default=1) < 1:
            raise WireError("an array lies outside its arena", where="message", do="Speak the same release")
        whole = np.frombuffer(self._memory, dtype, count, offset)
        whole.flags.writeable = False
        self._held[number] = weakref.ref(whole, partial(self._give_back, number))
        return whole.reshape(shape)

    def close(self) -> None:
        """Take nothing more; the connection ends with the last array that is still there."""
        self._closing = True
        if not self._held:
            self._connection.close()
        else:
            _lingering.add(self)

    def _give_back(self, number: int, _: object) -> None:
        self._memory[number] = 0
        self._held.pop(number, None)
        if self._closing and not self._held:
            self._connection.close()
            _lingering.discard(self)


_lingering: set[Mapped] = set()  # closed, and still with arrays: this keeps their connections


def unnamed_memory(size: int) -> int:
    """A descriptor of memory that has no name, and ends with the processes that hold it; its size cannot be
    changed where the system can promise that."""
    if not hasattr(os, "memfd_create"):
        handle, path = tempfile.mkstemp()
        os.unlink(path)
        os.ftruncate(handle, size)
        return handle
    handle = os.memfd_create("sparring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, size)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return handle


def _require_seal(handle: int) -> None:
    """Memory that its owner could shrink would end its reader with a bus error. OSError where it could."""
    if hasattr(os, "memfd_create") and not fcntl.fcntl(handle, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise OSError("its size is not sealed")
    if os.fstat(handle).st_size != LARGE_BYTES + ARENA_BYTES:
        raise OSError("it is no arena")
