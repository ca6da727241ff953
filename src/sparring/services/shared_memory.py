"""Large arrays between two processes of one machine: through shared memory, the frame says only where they lie.

A sender has an arena, an unnamed file in memory cut into blocks. Its descriptor is handed to the other side once, over
a Unix socket, so that nothing has a name that could stay behind. A block belongs to the receiver until the last array
that looks at it is gone; then its flag falls and the sender may fill it again. Where no block is free the array
travels in a frame like any small one, so nobody ever waits for memory.

    [4096 flags][blocks of 64 kB, 128 kB, … 256 MB: halves of halves, joined again when memory runs short]
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
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparring.errors import WireError
from sparring.wire.chunk import Array

LARGE_BYTES = 64 << 10  # arrays below this are cheaper in a frame; also the smallest block
ORDERS = 12  # the largest block is the smallest, so often doubled
ARENA_BYTES = LARGE_BYTES << ORDERS  # of address space; memory is taken as it is used
BLOCKS = 1 << ORDERS  # flags, one for each block, at its first 64 kB
_LOOKS = 8  # blocks that are looked at before memory is cut from the rest


@dataclass(frozen=True, slots=True)
class SharedBlock:
    """A place in an arena."""

    number: int  # of its flag
    offset: int


class Arena:
    """The sender's side. Threads may share one."""

    def __init__(self) -> None:
        self.id = int.from_bytes(os.urandom(7), "little")
        self.handle = unnamed_memory(LARGE_BYTES + ARENA_BYTES)
        self._memory = mmap.mmap(self.handle, LARGE_BYTES + ARENA_BYTES)
        self._spare: list[set[int]] = [set() for _ in range(ORDERS)] + [{0}]  # by order: never lent, or joined again
        self._lent: list[deque[int]] = [deque() for _ in range(ORDERS + 1)]  # by order, the longest lent first
        self._to: dict[int, bytes] = {}  # block → to whom it was lent last
        self._lock = threading.Lock()
        self.short = False  # for the last array no block was free

    def put(self, flat: Array, to: bytes) -> SharedBlock | None:
        """Copy a contiguous array into a block for `to`; None where none is free."""
        order = max(0, (flat.nbytes - 1).bit_length() - 16)
        with self._lock:
            number = self._free(order) if self.handle >= 0 and order <= ORDERS else None
            self.short = number is None
            if number is None:
                return None
            self._memory[number] = 1
            self._to[number] = to
            self._lent[order].append(number)
            offset = LARGE_BYTES * (number + 1)
            place = np.frombuffer(self._memory, np.uint8, flat.nbytes, offset)
        np.copyto(place, flat.reshape(-1).view(np.uint8))
        return SharedBlock(number, offset)

    def forget(self, to: bytes) -> None:
        """Whoever held blocks is dead: they are free, and their memory is given back."""
        with self._lock:
            if self.handle >= 0:
                for number in [number for number, holder in self._to.items() if holder == to]:
                    self._memory[number] = 0
                self._sweep(give_back=True)

    def held_bytes(self) -> int:
        """What receivers look at now."""
        with self._lock:
            return sum(
                LARGE_BYTES << order for order, lent in enumerate(self._lent) for number in lent if self._memory[number]
            )

    def close(self) -> None:
        """Give the memory back; whoever still looks at a block keeps it until they no longer do."""
        with self._lock:
            if self.handle >= 0:
                os.close(self.handle)
                self.handle = -1
                self._memory = mmap.mmap(-1, BLOCKS)  # a mapping has a handle

    def _free(self, order: int) -> int | None:
        """A block that nobody looks at: one that came back lately, since its memory is warm, or else a new one."""
        lent = self._lent[order]
        for _ in range(min(len(lent), _LOOKS)):
            number = lent.popleft()
            if not self._memory[number]:
                return number
            lent.append(number)
        cut = self._cut(order)
        if cut is None:
            self._sweep(give_back=False)
            cut = self._cut(order)
        return cut

    def _cut(self, order: int) -> int | None:
        from_order = next((larger for larger in range(order, ORDERS + 1) if self._spare[larger]), None)
        if from_order is None:
            return None
        number = self._spare[from_order].pop()
        for smaller in reversed(range(order, from_order)):
            self._spare[smaller].add(number + (1 << smaller))
        return number

    def _sweep(self, *, give_back: bool) -> None:
        """Join all that came back."""
        for order, lent in enumerate(self._lent):
            back = [number for number in lent if not self._memory[number]]
            self._lent[order] = deque(number for number in lent if self._memory[number])
            for number in back:
                del self._to[number]
                if give_back and hasattr(mmap, "MADV_REMOVE"):
                    self._memory.madvise(mmap.MADV_REMOVE, LARGE_BYTES * (number + 1), LARGE_BYTES << order)
                self._join(number, order)

    def _join(self, number: int, order: int) -> None:
        while order < ORDERS and (other := number ^ (1 << order)) in self._spare[order]:
            self._spare[order].remove(other)
            number, order = min(number, other), order + 1
        self._spare[order].add(number)


class Mapped:
    """The receiver's side of an arena. `line` tells the sender that we live: it stays open while arrays are looked at,
    since with its end all blocks are free."""

    def __init__(self, handle: int, line: socket.socket) -> None:
        try:
            _require_seal(handle)
            self._memory = mmap.mmap(handle, LARGE_BYTES + ARENA_BYTES)
        finally:
            os.close(handle)
        self._line, self._closing = line, False
        self._held: dict[int, weakref.ref[Any]] = {}

    def take(self, number: int, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
        """The array there, read-only, without a copy; its block is given back when nobody looks at it any more."""
        count = math.prod(shape)
        if (
            not 0 <= number < BLOCKS
            or offset != LARGE_BYTES * (number + 1)
            or min(shape, default=1) < 1
            or offset + count * dtype.itemsize > len(self._memory)
        ):
            raise WireError("an array lies outside its arena", where="message", do="Speak the same release")
        whole = np.frombuffer(self._memory, dtype, count, offset)
        whole.flags.writeable = False
        self._held[number] = weakref.ref(whole, partial(self._give_back, number))
        return whole.reshape(shape)

    def close(self) -> None:
        """Look at nothing more; the line ends with the last array that is still looked at."""
        self._closing = True
        if not self._held:
            self._line.close()
        else:
            _lingering.add(self)

    def _give_back(self, number: int, _: object) -> None:
        self._memory[number] = 0
        self._held.pop(number, None)
        if self._closing and not self._held:
            self._line.close()
            _lingering.discard(self)


_lingering: set[Mapped] = set()  # closed, and still looked at: nobody else would keep their lines


def unnamed_memory(size: int) -> int:
    """A descriptor of memory that has no name, gone with whoever holds it; its size cannot be changed where the
    system can promise that."""
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
    """Memory that its owner could shrink would end whoever looks at it, with a bus error. OSError where it could."""
    if hasattr(os, "memfd_create") and not fcntl.fcntl(handle, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise OSError("its size is not sealed")
    if os.fstat(handle).st_size != LARGE_BYTES + ARENA_BYTES:
        raise OSError("it is no arena")
