"""Rows into batches, by walks along their links: n-step transitions and stacks of frames in one pass over memory, which
is compiled; windows for recurrent learners in NumPy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import RUNNING
from sparring.games.spec import SeatSpec
from sparring.jit import compiled, released
from sparring.replay.rows import (
    CACHE_LINE_BYTES,
    COMPLETE,
    ENDING,
    NEXT,
    NONE,
    OVERWRITES,
    PREVIOUS,
    REWARD,
    ROW_BITS,
    VERSION,
    Memory,
    Rows,
)
from sparring.wire.chunk import Array

LARGE_BATCH_BYTES = 1 << 18  # about 50 µs; copying more than this lets other threads run meanwhile
AFTER = "next/"  # before the name of a column: as it was after the transition
FIRST, LAST, NEXT_VIEW = 0, 1, 2  # the row drawn; the last row of its transition; the row of what was seen after it


@dataclass(frozen=True, slots=True)
class BatchColumn:
    """A column of the batch: its name there, and which column of which row it comes from."""

    name: str
    column: str
    row: int  # FIRST, LAST or NEXT_VIEW
    shape: tuple[int, ...]  # of one step, in stacks where stacked
    dtype: np.dtype[Any]
    frames: int = 1


class TransitionGather:
    """Makes the columns of transition batches, with observations as stacks of `frames` frames."""

    def __init__(self, rows: Rows, seat: SeatSpec, frames: int) -> None:
        self._rows, self._columns = rows, tuple(_columns(rows.layout, seat, frames))
        self._plans: dict[int, tuple[np.dtype[Any], Array, Array]] = {}  # by the size of the batch

    def gather(self, rows: Array, n_steps: int, discount: float) -> Array:
        """The transitions that begin at `rows`: a record of all columns, `reward`, `n_steps`, `version`, `id`."""
        count = len(rows)
        if count not in self._plans:
            self._plans[count] = self._plan(count)
        layout, made, copied = self._plans[count]
        out = np.empty(layout.itemsize, np.uint8)
        gather = _gather if len(out) < LARGE_BATCH_BYTES else _gather_released
        gather(self._rows.memory, rows, made, copied, out, n_steps, discount)
        return np.ndarray((), layout, out)

    def _plan(self, count: int) -> tuple[np.dtype[Any], Array, Array]:
        """The layout of a batch in memory; where `_gather` puts the columns that it computes; what it copies where."""
        made = {"reward": np.float32, "n_steps": np.int32, "version": np.int64, "id": np.int64}
        formats = [(np.dtype(kind), (count,)) for kind in made.values()] + [
            (one.dtype, (count, *one.shape)) for one in self._columns
        ]
        sizes = [np.dtype(one).itemsize for one in formats]
        padded = [-(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES for size in sizes]  # each column begins on one
        *starts, total = np.concatenate([[0], np.cumsum(padded)]).tolist()
        names = [*made] + [one.name for one in self._columns]
        layout = np.dtype({"names": names, "formats": formats, "offsets": starts, "itemsize": total})
        copied = [
            (one.row, self._rows.offset(one.column), size // count // one.frames, start, one.frames)
            for one, start, size in zip(self._columns, starts[len(made) :], sizes[len(made) :], strict=True)
        ]
        return layout, np.array(starts[: len(made)]), np.array(copied, np.int64).reshape(-1, 5)


def _columns(layout: np.dtype[Any], seat: SeatSpec, frames: int) -> Iterator[BatchColumn]:
    for name, row in (("action", FIRST), ("ending", LAST), ("behaviour_logp", FIRST), ("state", FIRST)):
        if name in (layout.names or ()):
            yield BatchColumn(name, name, row, layout[name].shape, layout[name].base)
    for row, prefix in ((FIRST, ""), (NEXT_VIEW, AFTER)):
        for leaf in seat.observation:
            yield BatchColumn(prefix + leaf.name, leaf.name, row, leaf.stacked(frames), layout[leaf.name].base, frames)
        if "legal" in (layout.names or ()):
            yield BatchColumn(f"{prefix}legal", "legal", row, layout["legal"].shape, layout["legal"].base)


@compiled
def _gather(memory: Memory, rows: Array, made: Array, copied: Array, out: Array, n_steps: int, discount: float) -> None:
    words, floats, flags = memory
    count = len(rows)
    reward, walked = out[made[0] :].view(np.float32)[:count], out[made[1] :].view(np.int32)[:count]
    version, ids = out[made[2] :].view(np.int64)[:count], out[made[3] :].view(np.int64)[:count]
    where = np.empty((3, count), np.int64)
    for i in range(count):
        row = rows[i]
        total, scale, steps = floats[row, REWARD], discount, 1
        version[i], ids[i] = words[row, VERSION], row | (np.int64(flags[row, OVERWRITES]) << ROW_BITS)
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
        where[FIRST, i], where[LAST, i] = row, last
        where[NEXT_VIEW, i] = last if after == NONE else after  # after a true end no algorithm reads what was seen
        reward[i], walked[i] = total, steps
    out_words = out.view(np.int32)
    for line in range(len(copied)):
        row_kind, offset, size, start, frames = copied[line]
        if (size | offset) & 3:
            _copy(flags, words, where[row_kind], offset, size, out[start:], frames)
        else:
            _copy(words, words, where[row_kind], offset >> 2, size >> 2, out_words[start >> 2 :], frames)


@released
def _gather_released(*parameters: Any) -> None:
    _gather(*parameters)


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


def frames(columns: Mapping[str, Array], rows: Array, count: int) -> Array:
    """[count, n]: the row of each frame of a stack, oldest first; an episode's first one is repeated."""
    found = np.empty((count, len(rows)), np.int64)
    found[-1] = rows
    for place in range(count - 2, -1, -1):
        before = columns["previous"][found[place + 1]]
        found[place] = np.where(before == NONE, found[place + 1], before)
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """What a recurrent learner is fed: `length` decisions after `burn_in` ones that only warm its memory up.

    Windows of an episode begin every `length - overlap` decisions.
    """

    length: int
    burn_in: int = 0
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.length < 1 or self.burn_in < 0 or not 0 <= self.overlap < self.length:
            wrong = f"length = {self.length}, burn_in = {self.burn_in}, overlap = {self.overlap}"
            do = "Give a positive length, no negative burn-in, and an overlap below the length"
            raise ConfigError(wrong, where="replay window", do=do)


def windows(columns: Mapping[str, Array], rows: Array, window: Window) -> tuple[Array, Array]:
    """Rows and mask, both [burn_in + length, n], of the windows that `rows` stand in; True: there is such a step.

    The first burn_in places are those before the window, masked where the episode began later. Where earlier rows
    are gone from the table the window begins with the first that is left, as far as `rows` stay behind the burn-in.
    """
    first, walked = rows, np.zeros(len(rows), np.int64)
    back = columns["position"][rows] % (window.length - window.overlap) + window.burn_in
    for turn in range(int(back.max(initial=0))):
        before = columns["previous"][first]
        goes = (turn < back) & (before != NONE)
        first = np.where(goes, before, first)
        walked += goes
    short = back - walked
    begins = np.where(columns["position"][first] == 0, short, np.maximum(0, window.burn_in - walked))
    begins = np.minimum(begins, window.burn_in)
    size = window.burn_in + window.length
    found, mask = np.empty((size, len(rows)), np.int64), np.zeros((size, len(rows)), bool)
    here, there = first, np.ones(len(rows), bool)
    for place in range(size):
        begun = place >= begins
        found[place], mask[place] = here, there & begun
        after = columns["next"][here]
        goes = (columns["ending"][here] == RUNNING) & (after != NONE) & columns["complete"][after]
        there = there & (goes | ~begun)
        here = np.where(there & begun, after, here)
    return found, mask
