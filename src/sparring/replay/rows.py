"""A table's memory: one row per step, linked to the step before and after it in its stream; which rows are used again
when it is full; and a copy of it.

All columns of a step lie together, so that reading a small step is one cache miss. `unlink` and `link` are compiled:
importing this file imports Numba.
"""

import time
from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import RUNNING, TERMINATED
from sparring.games.spec import SeatSpec
from sparring.jit import compiled
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

NONE = -1  # no row, no stream
HUGE_PAGE_BYTES, CACHE_LINE_BYTES = 1 << 21, 64
ROW_BITS = 40  # the id of a sample is its row and, above these bits, how often that row was overwritten, modulo 256
ROW_MASK = (1 << ROW_BITS) - 1
SNAPSHOT_SLICE_BYTES = 1 << 18  # some 4,000 steps of CartPole, 37 of Atari: copying it takes some 0.1 ms
YIELD_S = 0.0005

# Where the compiled functions find these columns; the same in every table, since they come first in a row.
EPISODE = 0  # in words of 8 bytes
NEXT, PREVIOUS, WAITS, POSITION, UPLOADER, VERSION, REWARD, LOGP = 2, 3, 4, 5, 6, 7, 9, 10  # in words of 4 bytes
SOURCE, ENDING, COMPLETE, OVERWRITES = 32, 33, 34, 35  # in bytes
REMOVED_AT_ONCE = 64  # LowestPriority frees one part in this many at a time
FINAL = 255  # as `ending`: no step, but the observation at which an episode was cut


def row_layout(seat: SeatSpec, *, masks: bool, state_numbers: int = 0) -> np.dtype[Any]:
    """One step. CartPole's takes 64 bytes, a cache line."""
    columns: list[tuple[Any, ...]] = [
        ("episode", np.int64),
        ("next", np.int32),  # row of the next step in the stream, or of the final observation
        ("previous", np.int32),
        ("waits", np.int32),  # the stream whose next step follows this one
        ("position", np.int32),  # decisions since the episode began
        ("uploader", np.int32),
        ("version", np.int32),
        ("source", np.uint8),
        ("ending", np.uint8),
        ("complete", np.bool_),  # its successor is known: n-step returns and windows may walk over it
        ("overwrites", np.uint8),  # how often, modulo 256: tells a sampled step from a later one in its row
        ("reward", np.float32),
        ("behaviour_logp", np.float32),  # NaN where it is unknown
        *((leaf.name, leaf.dtype, leaf.shape) for leaf in (seat.action, *seat.observation)),
    ]
    if state_numbers:
        columns.append(("state", np.float32, (state_numbers,)))
    if masks:
        columns.append(("legal", np.bool_, (seat.action.masks,)))
    return np.dtype(columns, align=True)


Memory = tuple[Array, Array, Array]  # the rows as words of 4 bytes, as floats, and as bytes


class Rows:
    """A fixed number of rows: their memory, and the same as columns."""

    def __init__(self, capacity: int, layout: np.dtype[Any]) -> None:
        flags = zeroed_pages(capacity * layout.itemsize).reshape(capacity, layout.itemsize)
        self.layout = layout
        self.memory: Memory = (flags.view(np.int32), flags.view(np.float32), flags)
        table = flags.reshape(-1).view(layout)
        self.columns: dict[str, Array] = {name: table[name] for name in layout.names or ()}
        for name in ("next", "previous", "waits"):
            self.columns[name][:] = NONE

    def offset(self, name: str) -> int:
        """Where a column begins in a row, in bytes."""
        assert self.layout.fields is not None
        return int(self.layout.fields[name][1])


def zeroed_pages(size: int) -> Array:
    """`size` bytes of zeros that begin on a huge page, which NumPy asks the system for: random reads miss less."""
    room = HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else CACHE_LINE_BYTES  # the rest of it is never touched
    whole = np.zeros(size + room, np.uint8)
    first = -whole.ctypes.data % room
    return whole[first : first + size]


@compiled
def unlink(memory: Memory, tail: Array, rows: Array, frames: int) -> Array:
    """Take `rows` out of their streams, to be overwritten. Returns rows that cannot be sampled now, some perhaps twice.

    `tail` holds for each stream the row that waits for its successor; an observation is a stack of `frames` rows.
    """
    words, _, flags = memory
    gone = np.empty(len(rows) * (1 + max(1, frames)), np.int64)
    count = 0
    for row in rows:
        gone[count] = row
        count += 1
        before, after, waits = words[row, PREVIOUS], words[row, NEXT], words[row, WAITS]
        if before != NONE:  # only where rows are not removed in the order in which they were inserted
            words[before, NEXT] = NONE
            flags[before, COMPLETE] = 0
            gone[count] = before
            count += 1
        if after != NONE:
            words[after, PREVIOUS] = NONE
            for _ in range(frames - 1):  # their stacks lack a frame now
                if after != NONE:
                    gone[count] = after
                    count += 1
                    after = words[after, NEXT]
        if waits != NONE:
            tail[waits] = NONE
        words[row, NEXT] = words[row, PREVIOUS] = words[row, WAITS] = NONE
        flags[row, COMPLETE] = 0
        flags[row, OVERWRITES] += 1
    return gone[:count]


# What `link` writes into the rows of new steps: stream, reward, ending, log-probability (empty: unknown), row of the
# observation after each, or NONE (empty: none); uploader, version and source of all.
# A plain tuple: Numba takes 2 µs for a named one.
NewSteps = tuple[Array, Array, Array, Array, Array, int, int, int]


@compiled
def link(memory: Memory, tail: Array, rows: Array, new: NewSteps, episode: int, frames: int) -> tuple[Array, int]:
    """Link each new row, in order, to the last one of its stream. Returns rows that can be sampled now, and `episode`.

    `episode` is the first free number of an episode; NONE says that episodes and positions are already in `rows`.
    """
    words, floats, flags = memory
    streams, reward, ending, logp, finals, uploader, version, source = new
    longs = words.view(np.int64)
    ready, count = np.empty(2 * len(rows), np.int64), 0
    for i in range(len(rows)):
        row, stream, final = rows[i], streams[i], finals[i] if len(finals) else NONE
        before = tail[stream]
        if before != NONE:
            words[before, WAITS], words[before, NEXT] = NONE, row
            count = _complete(words, flags, before, frames, ready, count)
        words[row, PREVIOUS] = before
        if episode != NONE:
            words[row, POSITION] = 0 if before == NONE else words[before, POSITION] + 1
            longs[row, EPISODE] = episode if before == NONE else longs[before, EPISODE]
            episode += int(before == NONE)
        words[row, UPLOADER], words[row, VERSION], flags[row, SOURCE] = uploader, version, source
        floats[row, REWARD], flags[row, ENDING] = reward[i], ending[i]
        floats[row, LOGP] = logp[i] if len(logp) else np.nan
        if ending[i] == RUNNING and final == NONE:
            words[row, WAITS], tail[stream] = stream, row
            continue
        tail[stream] = NONE
        if final != NONE:
            words[row, NEXT] = final
            words[final, PREVIOUS], words[final, POSITION] = row, words[row, POSITION] + 1
            flags[final, ENDING] = FINAL
        if final != NONE or ending[i] == TERMINATED:
            count = _complete(words, flags, row, frames, ready, count)
    return ready[:count], episode


@compiled
def _complete(words: Array, flags: Array, row: int, frames: int, ready: Array, count: int) -> int:
    """Mark a row whose successor is known; append it to `ready` if all frames of its stack are there."""
    flags[row, COMPLETE] = 1
    here = row
    for _ in range(frames - 1):
        before = words[here, PREVIOUS]
        if before == NONE:
            if words[here, POSITION] != 0:
                return count
            break
        here = before
    ready[count] = row
    return count + 1


@compiled
def current_rows(ids: Array, values: Array, flags: Array) -> tuple[Array, Array]:
    """The rows, and their values, of those ids that were not overwritten since."""
    rows, kept, count = np.empty(len(ids), np.int64), np.empty(len(ids), np.float32), 0
    for i in range(len(ids)):
        row = ids[i] & ROW_MASK
        if flags[row, OVERWRITES] == ids[i] >> ROW_BITS:
            rows[count], kept[count] = row, values[i]
            count += 1
    return rows[:count], kept[:count]


class Snapshot:
    """A copy of the first `rows` rows of a table's `memory` as they stood at one moment: an array that another thread
    makes, by `np.asarray`, while the table changes.

    Before a row changes, the table has its slice copied, unless that was done. So the copy is of one moment however
    long it takes, and the table's `lock` is held for one slice at a time.
    """

    def __init__(self, memory: Array, rows: int, lock: RLock) -> None:
        self._source, self._rows, self._lock = memory, rows, lock
        self._copied = np.empty((rows, *memory.shape[1:]), memory.dtype)
        self.dtype, self.shape = memory.dtype, self._copied.shape
        self.slice_rows = max(1, SNAPSHOT_SLICE_BYTES // max(1, memory[:1].nbytes))
        self._left = np.ones(-(-rows // self.slice_rows), bool)
        self._next = 0

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        more = True
        while more:
            with self._lock:
                more = self.copy_next()
            time.sleep(YIELD_S)  # or this thread takes the lock again before the learner, which waits for it, wakes
        return self._copied

    def about_to_change(self, rows: Array) -> None:
        """Copy the slices of these rows, before they are overwritten. The caller holds the lock."""
        inside = rows[rows < self._rows] // self.slice_rows
        for number in np.unique(inside[self._left[inside]]):
            self._copy(int(number))

    def rows_left(self) -> bool:
        """Whether any of them are not yet copied."""
        return bool(self._left.any())

    def copy_next(self) -> bool:
        """Copy one more slice; False where none is left. The caller holds the lock."""
        while self._next < len(self._left) and not self._left[self._next]:
            self._next += 1
        if self._next == len(self._left):
            return False
        self._copy(self._next)
        return True

    def _copy(self, number: int) -> None:
        part = slice(number * self.slice_rows, min((number + 1) * self.slice_rows, self._rows))
        self._copied[part] = self._source[part]
        self._left[number] = False


class Fifo:
    """First in, first out: the table is a ring buffer."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._claimed = 0
        self.contiguous = True  # the rows claimed last ascend one by one

    def claim(self, count: int, priorities: Callable[[], Array]) -> Array:
        """`count` different rows for new steps. `priorities` gives every row's priority; infinite: it must stay."""
        first = self._claimed % self._capacity
        self._claimed += count
        rows = np.arange(first, first + count)
        self.contiguous = first + count <= self._capacity
        return rows if self.contiguous else rows % self._capacity

    def save(self) -> Tree:
        return {"claimed": self._claimed}

    def load(self, state: Tree) -> None:
        self._claimed = state["claimed"]


class LowestPriority:
    """The lowest priority goes first; among equals, any.

    A pass over all rows finds a 64th of them at once, so that a new row costs reading 64 numbers.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = np.arange(capacity, dtype=np.int64)
        self.contiguous = False

    def claim(self, count: int, priorities: Callable[[], Array]) -> Array:
        if len(self._free) < count:
            self._free = np.concatenate([self._free, self._least(count, priorities())])
        rows, self._free = self._free[:count], self._free[count:]
        return rows

    def save(self) -> Tree:
        return {"free": self._free.copy()}

    def load(self, state: Tree) -> None:
        self._free = state["free"]

    def _least(self, count: int, priorities: Array) -> Array:
        priorities[self._free] = np.inf  # they are free already
        size = min(max(count, self._capacity // REMOVED_AT_ONCE), self._capacity - 1)
        least = np.argpartition(priorities, size)[:size]
        least = least[np.isfinite(priorities[least])]
        if len(least) + len(self._free) < count:
            wrong = f"{self._capacity} rows leave no room for {count} more: the others wait for what comes after them"
            do = "Set capacity_steps to more than twice the games played at once"
            raise ConfigError(wrong, where="[replay]", do=do)
        return least


Remover = Fifo | LowestPriority
