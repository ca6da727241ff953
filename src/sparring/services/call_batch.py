"""Many callers' arguments as one, and one result as many."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparring.errors import WireError


def shape_of(tree: Any) -> Any:
    """What two callers must have alike to be served together: structure, dtypes and shapes; numbers may differ."""
    if isinstance(tree, dict):
        return frozenset((name, shape_of(value)) for name, value in tree.items())
    if isinstance(tree, list | tuple):
        return tuple(map(shape_of, tree))
    if isinstance(tree, np.ndarray):
        return tree.dtype.str, tree.shape
    return type(tree)


def joined(trees: Sequence[Any]) -> Any:
    """Trees of one shape as one: arrays and numbers get an axis in front, text and the like become lists."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: joined([tree[name] for tree in trees]) for name in first}
    if isinstance(first, list | tuple):
        return [joined(parts) for parts in zip(*trees, strict=True)]
    if isinstance(first, np.ndarray):
        return np.stack(trees)
    if isinstance(first, bool | int | float):
        return np.array(trees)
    return list(trees)


def parted(result: Any, count: int, verb: str) -> list[Any]:
    """One result for each of `count` callers: rows of arrays and lists, None for all where there is none."""
    if result is None:
        return [None] * count
    if isinstance(result, dict):
        parts = {name: parted(value, count, verb) for name, value in result.items()}
        return [{name: values[row] for name, values in parts.items()} for row in range(count)]
    if isinstance(result, tuple):
        columns = [parted(value, count, verb) for value in result]
        return [[column[row] for column in columns] for row in range(count)]
    if isinstance(result, list | np.ndarray) and len(result) == count:
        return [np.asarray(row) if isinstance(result, np.ndarray) else row for row in result]
    given = f"{len(result)} rows" if isinstance(result, list | np.ndarray) else f"a {type(result).__name__}"
    raise WireError(f"it answered {count} callers with {given}", where=verb, do="Give one row for each caller")
