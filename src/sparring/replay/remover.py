"""Which rows make room for new ones when a table is full."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from sparring.errors import ConfigError
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

BATCHES = 64  # LowestPriority frees one part in this many at a time


class Remover(Protocol):
    """Chooses the rows that new steps are written to; the table removes the steps that were there."""

    contiguous: bool  # the rows claimed last ascend one by one

    def claim(self, count: int, priorities: Callable[[], Array]) -> Array:
        """`count` different rows. `priorities` gives every row's priority; infinite: it must stay."""
        ...

    def save(self) -> Tree:
        """Everything that `load` needs."""
        ...

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        ...


class Fifo:
    """First in, first out: the table is a ring buffer."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._claimed = 0
        self.contiguous = True

    def claim(self, count: int, priorities: Callable[[], Array]) -> Array:
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
        size = min(max(count, self._capacity // BATCHES), self._capacity - 1)
        least = np.argpartition(priorities, size)[:size]
        least = least[np.isfinite(priorities[least])]
        if len(least) + len(self._free) < count:
            wrong = f"{self._capacity} rows leave no room for {count} more: the others wait for what comes after them"
            do = "Set capacity_steps to more than twice the games played at once"
            raise ConfigError(wrong, where="[replay]", do=do)
        return least
