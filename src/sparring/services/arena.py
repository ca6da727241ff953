"""Large arrays between two processes of one machine: through shared memory, the frame says only where they lie.

A sender has an arena, an unnamed file in memory cut into blocks. Its descriptor is handed to the other side once, over
a Unix socket, so that nothing has a name that could stay behind. A block belongs to the receiver until the last array
that looks at it is gone; then its flag falls and the sender may fill it again. Where no block is free the array
travels in a frame like any small one, so nobody ever waits for memory.
"""

import mmap
import os
import tempfile
import threading
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np

from sparring.errors import WireError
from sparring.wire.chunk import Array

LARGE_BYTES = 64 << 10  # arrays below this are cheaper in a frame
ARENA_BYTES = 256 << 20  # of address space; memory is taken as it is used
BLOCKS = 4096
_ALIGN = 4096


@dataclass(frozen=True, slots=True)
class Block:
    """A place in an arena."""

    number: int  # of its flag
    offset: int
    size: int


class Arena:
    """The sender's side. Threads may share one."""

    def __init__(self, size: int = ARENA_BYTES) -> None:
        self.id = int.from_bytes(os.urandom(7), "little")
        self.handle = unnamed(size)
        self._memory = mmap.mmap(self.handle, size)
        self._flags = np.frombuffer(self._memory, np.uint8, BLOCKS)
        self._size, self._end, self._blocks = size, -(-BLOCKS // _ALIGN) * _ALIGN, 0
        self._lent: defaultdict[int, deque[Block]] = defaultdict(deque)  # by size, the longest lent first
        self._to: dict[int, bytes] = {}  # block → to whom it was lent last
        self._lock = threading.Lock()

    def put(self, flat: Array, to: bytes) -> Block | None:
        """Copy a contiguous array into a block for `to`; None where none is free."""
        wanted = max(_ALIGN, 1 << (flat.nbytes - 1).bit_length())
        with self._lock:
            block = self._free(wanted) if self.handle >= 0 else None
            if block is None:
                return None
            self._flags[block.number] = 1
            self._to[block.number] = to
            self._lent[wanted].append(block)
            place = np.frombuffer(self._memory, np.uint8, flat.nbytes, block.offset)
        np.copyto(place, flat.reshape(-1).view(np.uint8))
        return block

    def forget(self, to: bytes) -> None:
        """Whoever held blocks is dead: they are free."""
        with self._lock:
            for number, holder in self._to.items():
                if holder == to:
                    self._flags[number] = 0

    def close(self) -> None:
        """Give the memory back; whoever still looks at a block keeps it until they no longer do."""
        with self._lock:
            if self.handle >= 0:
                os.close(self.handle)
                self.handle = -1
                self._flags, self._memory = np.zeros(BLOCKS, np.uint8), mmap.mmap(-1, _ALIGN)  # a mapping has a handle

    def _free(self, wanted: int) -> Block | None:
        lent = self._lent[wanted]
        for _ in range(min(len(lent), 8)):
            block = lent.popleft()
            if not self._flags[block.number]:
                return block
            lent.append(block)
        if self._blocks >= BLOCKS or self._end + wanted > self._size:
            return None
        block = Block(self._blocks, self._end, wanted)
        self._blocks += 1
        self._end += wanted
        return block


class Mapped:
    """The receiver's side of an arena."""

    def __init__(self, handle: int) -> None:
        size = os.fstat(handle).st_size
        self._memory = mmap.mmap(handle, size)
        self._flags = np.frombuffer(self._memory, np.uint8, BLOCKS)
        os.close(handle)

    def take(self, number: int, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
        """The array there, read-only, without a copy; its block is given back when nobody looks at it any more."""
        count = int(np.prod(shape, dtype=np.int64))
        if not 0 <= number < BLOCKS or offset < BLOCKS or offset + count * dtype.itemsize > len(self._memory):
            raise WireError("an array lies outside its arena", where="message", do="Speak the same release")
        whole = np.frombuffer(self._memory, dtype, count, offset)
        whole.flags.writeable = False
        weakref.finalize(whole, self._flags.__setitem__, number, 0)
        return whole.reshape(shape)


def unnamed(size: int) -> int:
    """A descriptor of memory that has no name, gone with whoever holds it."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("sparring", os.MFD_CLOEXEC)
    else:
        handle, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(handle, size)
    return handle
