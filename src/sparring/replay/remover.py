"""Which rows make room for new ones when a table is full."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from sparring.errors import ConfigError
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

BATCHES = 64  # a table of lowest priority first makes room for this part of itself at a time


class Remover(Protocol):
    """Gives rows to write to. What stood there is forgotten by the table."""

    side_by_side: bool  # the rows given last ascend one by one

    def claim(self, count: int, worth: Callable[[], Array]) -> Array:
        """`count` different rows. `worth` says what each row of a full table is worth; infinite: it must stay."""
        ...

    def save(self) -> Tree:
        """Everything that `load` needs."""
        ...

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        ...


class Fifo:
    """First in, first out: the table is a ring."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._claimed = 0
        self.side_by_side = True

    def claim(self, count: int, worth: Callable[[], Array]) -> Array:
        first = self._claimed % self._capacity
        self._claimed += count
        rows = np.arange(first, first + count)
        self.side_by_side = first + count <= self._capacity
        return rows if self.side_by_side else rows % self._capacity

    def save(self) -> Tree:
        return {"claimed": self._claimed}

    def load(self, state: Tree) -> None:
        self._claimed = state["claimed"]


class LowestPriority:
    """What is worth least goes first; of what is worth the same, any.

    A pass over all rows finds a 64th of them at once, so that a new row costs 64 looks at a number.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = np.arange(capacity, dtype=np.int64)
        self.side_by_side = False

    def claim(self, count: int, worth: Callable[[], Array]) -> Array:
        if len(self._free) < count:
            self._free = np.concatenate([self._free, self._least(count, worth())])
        rows, self._free = self._free[:count], self._free[count:]
        return rows

    def save(self) -> Tree:
        return {"free": self._free.copy()}

    def load(self, state: Tree) -> None:
        self._free = state["free"]

    def _least(self, count: int, worth: Array) -> Array:
        worth[self._free] = np.inf  # they are to be had already
        size = min(max(count, self._capacity // BATCHES), self._capacity - 1)
        least = np.argpartition(worth, size)[:size]
        least = least[np.isfinite(worth[least])]
        if len(least) + len(self._free) < count:
            raise ConfigError(
                f"{self._capacity} rows leave no room for {count} more: the others wait for what comes after them",
                where="[replay]",
                do="Set capacity_steps to more than twice the games played at once",
            )
        return least
