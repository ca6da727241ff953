"""Rows into batches: n-step transitions and stacks of frames, in one pass over memory. Compiled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.games.protocol import RUNNING
from sparring.jit import compiled, released
from sparring.replay.rows import COMPLETE, ENDING, NEXT, NONE, PREVIOUS, REWARD, VERSION, Rows
from sparring.wire.chunk import Array

LARGE_BATCH = 1 << 18  # bytes: about 50 µs, from which on other threads go on while it is copied
_LINE = 64  # bytes of a line of the cache, on which every column begins
NOW, END, THEN = 0, 1, 2  # the row that was drawn; the last that its transition walks over; what was seen after it


@dataclass(frozen=True, slots=True)
class Wanted:
    """A column of the batch: its name there, where it comes from, and as what it is given."""

    name: str
    column: str
    moment: int
    shape: tuple[int, ...]  # of one step, in stacks where stacked
    dtype: np.dtype[Any]
    stacked: bool = False


class Taking:
    """Makes the same columns for every batch of `frames`-stacks."""

    def __init__(self, rows: Rows, wanted: Sequence[Wanted], frames: int) -> None:
        self._rows, self._wanted, self._frames = rows, wanted, frames
        self._plans: dict[int, tuple[np.dtype[Any], Array, Array]] = {}  # by the size of the batch

    def take(self, rows: Array, n_steps: int, discount: float) -> Array:
        """The transitions from `rows`: one record of the wanted columns and `reward`, `n_steps` and `version`."""
        count, held = len(rows), self._rows
        if count not in self._plans:
            self._plans[count] = self._plan(count)
        layout, made, copied = self._plans[count]
        out = np.empty(layout.itemsize, np.uint8)
        take = _take if len(out) < LARGE_BATCH else _take_released
        take(held.words, held.floats, held.bytes, rows, made, copied, out, n_steps, discount)
        return np.ndarray((), layout, out)

    def _plan(self, count: int) -> tuple[np.dtype[Any], Array, Array]:
        """A batch in memory; for `_take` where the columns that it makes begin, and what it copies where."""
        made = [("reward", np.dtype(np.float32)), ("n_steps", np.dtype(np.int32)), ("version", np.dtype(np.int64))]
        formats = [(dtype, (count,)) for _, dtype in made] + [(one.dtype, (count, *one.shape)) for one in self._wanted]
        sizes = [np.dtype(one).itemsize for one in formats]
        *starts, total = np.concatenate([[0], np.cumsum([-(-size // _LINE) * _LINE for size in sizes])]).tolist()
        names = [name for name, _ in made] + [one.name for one in self._wanted]
        layout = np.dtype({"names": names, "formats": formats, "offsets": starts, "itemsize": total})
        copied = []
        for one, start, size in zip(self._wanted, starts[len(made) :], sizes[len(made) :], strict=True):
            frames = self._frames if one.stacked else 1
            copied.append((one.moment, self._rows.offset(one.column), size // count // frames, start, frames))
        return layout, np.array(starts[: len(made)]), np.array(copied, np.int64).reshape(-1, 5)


@compiled
def _take(  # noqa: PLR0913  (a table's memory, what is asked, and where the answer goes)
    words: Array,
    floats: Array,
    flags: Array,
    rows: Array,
    made: Array,
    copied: Array,
    out: Array,
    n_steps: int,
    discount: float,
) -> None:
    count = len(rows)
    reward, walked = out[made[0] :].view(np.float32)[:count], out[made[1] :].view(np.int32)[:count]
    version = out[made[2] :].view(np.int64)[:count]
    where = np.empty((3, count), np.int64)
    for i in range(count):
        row = rows[i]
        total, scale, steps = floats[row, REWARD], discount, 1
        version[i] = words[row, VERSION]
        last = row
        while steps < n_steps and flags[last, ENDING] == RUNNING:
            after = words[last, NEXT]
            if after == NONE or flags[after, COMPLETE] == 0:
                break
            total += np.float32(scale * floats[after, REWARD])
            scale *= discount
            steps += 1
            last = after
        after = words[last, NEXT]
        where[NOW, i], where[END, i] = row, last
        where[THEN, i] = last if after == NONE else after  # after a true end nobody asks what was seen
        reward[i], walked[i] = total, steps
    out_words = out.view(np.int32)
    for line in range(len(copied)):
        moment, offset, size, start, frames = copied[line]
        if (size | offset) & 3:
            _copy(flags, words, where[moment], offset, size, out[start:], frames)
        else:
            _copy(words, words, where[moment], offset >> 2, size >> 2, out_words[start >> 2 :], frames)


@released
def _take_released(  # noqa: PLR0913  (as _take)
    words: Array,
    floats: Array,
    flags: Array,
    rows: Array,
    made: Array,
    copied: Array,
    out: Array,
    n_steps: int,
    discount: float,
) -> None:
    _take(words, floats, flags, rows, made, copied, out, n_steps, discount)


@compiled
def _copy(memory: Array, words: Array, rows: Array, offset: int, size: int, out: Array, frames: int) -> None:
    """One column of `rows`, in bytes or in words, whichever `memory` and `out` are made of."""
    if size == 1 and frames == 1:
        for i in range(len(rows)):
            out[i] = memory[rows[i], offset]
        return
    if size == 4 and frames == 1:  # written out: a loop of four costs more than what it copies
        for i in range(len(rows)):
            row = rows[i]
            out[4 * i] = memory[row, offset]
            out[4 * i + 1] = memory[row, offset + 1]
            out[4 * i + 2] = memory[row, offset + 2]
            out[4 * i + 3] = memory[row, offset + 3]
        return
    for i in range(len(rows)):
        row = rows[i]
        for frame in range(frames - 1, -1, -1):  # the newest last; an episode's first one is repeated
            to = (i * frames + frame) * size
            for k in range(size):
                out[to + k] = memory[row, offset + k]
            if frame and words[row, PREVIOUS] != NONE:
                row = words[row, PREVIOUS]
