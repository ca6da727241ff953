"""Columns of games and seats as columns of streams: stream = seat · n + game."""

import numpy as np

from sparring.games.protocol import Columns
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree


def by_stream(column: Array) -> Array:
    """[n, seats] as [streams]."""
    return column.T.reshape(-1)


def side_by_side(by_seat: tuple[Columns, ...]) -> Columns:
    """What every seat sees, as streams."""
    return {leaf: np.concatenate([columns[leaf] for columns in by_seat]) for leaf in by_seat[0]}


def like(mask: Array, column: Array) -> Array:
    """A mask [streams] that spreads over the column [streams, …]."""
    return mask.reshape(-1, *(1,) * (column.ndim - 1))


def rows_of(column: Array | None, rows: Array | slice) -> Array | None:
    """Those rows, where there is a column."""
    return None if column is None else column[rows]


def copied(value: Tree) -> Tree:
    """A column, columns by name, or nothing."""
    if value is None:
        return None
    return {name: column.copy() for name, column in value.items()} if isinstance(value, dict) else value.copy()
