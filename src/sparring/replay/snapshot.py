"""A copy of columns as they stood at one moment, made in slices while the table goes on.

Before a row changes, the slice that it stands in is copied, unless that was done; so the copy is whole and of one
moment however long it takes, and nobody waits for more than one slice at a time.
"""

from collections.abc import Mapping

import numpy as np

from sparring.wire.chunk import Array

SLICE_BYTES = 1 << 18  # some 4,000 steps of CartPole, 37 of Atari: whoever waits for a slice waits some 0.1 ms


class Snapshot:
    """The first `rows` rows of `columns`. Its caller holds the table's lock."""

    def __init__(self, columns: Mapping[str, Array], rows: int) -> None:
        self._from = columns
        self._rows = rows
        self.columns = {name: np.empty((rows, *column.shape[1:]), column.dtype) for name, column in columns.items()}
        size = sum(column[:1].nbytes for column in self.columns.values()) if rows else 1
        self.slice_rows = max(1, SLICE_BYTES // size)
        self._left = np.ones(-(-rows // self.slice_rows), bool)
        self._next = 0

    def about_to_change(self, rows: Array) -> None:
        """Copy what stands in these rows, before it is written over."""
        inside = rows[rows < self._rows] // self.slice_rows
        for number in np.unique(inside[self._left[inside]]):
            self._copy(int(number))

    def copy_on(self) -> bool:
        """One slice more; whether any is left."""
        while self._next < len(self._left) and not self._left[self._next]:
            self._next += 1
        if self._next == len(self._left):
            return False
        self._copy(self._next)
        return True

    def _copy(self, number: int) -> None:
        part = slice(number * self.slice_rows, min((number + 1) * self.slice_rows, self._rows))
        for name, column in self._from.items():
            self.columns[name][part] = column[part]
        self._left[number] = False
