"""Steps as they lie in memory: all columns of a step together, so that reading a small one is one cache miss."""

import mmap
from typing import Any

import numpy as np

from sparring.games.spec import SeatSpec
from sparring.wire.chunk import Array

NONE = -1  # no row, no stream
LARGE_PAGE = 1 << 21  # bytes

# Where the links stand in a row, in words of four bytes; the same in every table, since they come first.
EPISODE, NEXT, PREVIOUS, WAITS, POSITION, UPLOADER, VERSION, REWARD, LOGP = 0, 2, 3, 4, 5, 6, 7, 9, 10
SOURCE, ENDING, COMPLETE, FINAL = 32, 33, 34, 35  # in bytes


def row_layout(seat: SeatSpec, *, masks: bool, state_numbers: int = 0) -> np.dtype[Any]:
    """One step. CartPole's takes 64 bytes, a cache line."""
    kept: list[tuple[Any, ...]] = [
        ("episode", np.int64),
        ("next", np.int32),
        ("previous", np.int32),
        ("waits", np.int32),  # the stream whose next step follows this one
        ("position", np.int32),  # decisions since the episode began
        ("uploader", np.int32),
        ("version", np.int32),
        ("source", np.uint8),
        ("ending", np.uint8),
        ("complete", np.bool_),  # may be walked over
        ("final", np.bool_),
        ("reward", np.float32),
        ("behaviour_logp", np.float32),  # not a number where nobody knows it
        *((leaf.name, leaf.dtype, leaf.shape) for leaf in (seat.action, *seat.observation)),
    ]
    if state_numbers:
        kept.append(("state", np.float32, (state_numbers,)))
    if masks:
        kept.append(("legal", np.bool_, (seat.action.masks,)))
    return np.dtype(kept, align=True)


class Rows:
    """A fixed number of rows, and the same memory as columns, as words and as bytes."""

    def __init__(self, capacity: int, layout: np.dtype[Any]) -> None:
        self.bytes = large(capacity * layout.itemsize).reshape(capacity, layout.itemsize)
        self.layout = layout
        self.words = self.bytes.view(np.int32)
        self.floats = self.bytes.view(np.float32)
        table = self.bytes.reshape(-1).view(layout)
        self.columns: dict[str, Array] = {name: table[name] for name in layout.names or ()}
        for name in ("next", "previous", "waits"):
            self.columns[name][:] = NONE

    def offset(self, name: str) -> int:
        """Of a column, in bytes."""
        assert self.layout.fields is not None
        return int(self.layout.fields[name][1])


def large(size: int) -> Array:
    """`size` bytes of zeros that begin on a page, in large pages where the system has them: random reads miss less."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(size, np.uint8)
    room = LARGE_PAGE if size >= LARGE_PAGE else 0  # to begin with a large page; what is left of it is never touched
    memory = mmap.mmap(-1, max(1, size + room), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    first = -whole.ctypes.data % LARGE_PAGE if room else 0
    return whole[first : first + size]
