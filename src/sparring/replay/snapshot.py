"""A copy of columns as they stood at one moment, made in slices while the table goes on.

Before a row changes, the slice that it stands in is copied, unless that was done; so the copy is whole and of one
moment however long it takes, and nobody waits for more than one slice at a time.
"""

from collections.abc import Mapping

import numpy as np

from sparring.wire.chunk import Array

SLICE_ROWS = 4_096


class Snapshot:
    """The first `rows` rows of `columns`. Its caller holds the table's lock."""

    def __init__(self, columns: Mapping[str, Array], rows: int) -> None:
        self._from = columns
        self._rows = rows
        self.columns = {name: np.empty((rows, *column.shape[1:]), column.dtype) for name, column in columns.items()}
        self._left = np.ones(-(-rows // SLICE_ROWS), bool)
        self._next = 0

    def about_to_change(self, rows: Array) -> None:
        """Copy what stands in these rows, before it is written over."""
        inside = rows[rows < self._rows] // SLICE_ROWS
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
        part = slice(number * SLICE_ROWS, min((number + 1) * SLICE_ROWS, self._rows))
        for name, column in self._from.items():
            self.columns[name][part] = column[part]
        self._left[number] = False
