"""Which steps of a table a learner sees next. A sampler is told what arrives and what was learned."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator

from sparring.wire.chunk import Array
from sparring.wire.tree import Tree


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows of the table, and the importance of each; None says that all weigh the same."""

    rows: Array  # int64 [count]
    weight: Array | None = None  # float32 [count]


class Sampler(Protocol):
    """Uniform now; priorities and recency fit behind the same verbs."""

    def __len__(self) -> int:
        """How many rows may be drawn."""
        ...

    def ready(self, rows: Array) -> None:
        """These rows may be drawn from now on."""
        ...

    def gone(self, rows: Array) -> None:
        """These rows hold something else now, and may not be drawn until `ready` names them again."""
        ...

    def draw(self, count: int, rng: Generator) -> Drawn:
        """`count` rows with replacement; at least one is ready."""
        ...

    def learned(self, rows: Array, priorities: Array) -> None:
        """What the learner said of the rows that it was given."""
        ...

    def save(self) -> Tree:
        """Everything that `load` needs."""
        ...

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        ...


class Uniform:
    """Every ready row is as likely as any other.

    The ready rows stand packed in `_rows`, and `_place` says where each stands, so that drawing is one
    lookup and coming or going moves one entry per row.
    """

    def __init__(self, capacity: int) -> None:
        self._rows = np.zeros(capacity, np.int64)
        self._place = np.full(capacity, -1, np.int64)
        self._count = 0

    def ready(self, rows: Array) -> None:
        end = self._count + len(rows)
        self._rows[self._count : end] = rows
        self._place[rows] = np.arange(self._count, end)
        self._count = end

    def gone(self, rows: Array) -> None:
        rows = rows[self._place[rows] >= 0]
        if not len(rows):
            return
        # The holes below the new end are filled by the survivors above it: as many of the one as of the other.
        places, end = self._place[rows], self._count - len(rows)
        self._place[rows] = -1
        tail = self._rows[end : self._count]
        movers = tail[self._place[tail] >= 0]
        holes = places[places < end]
        self._rows[holes] = movers
        self._place[movers] = holes
        self._count = end

    def draw(self, count: int, rng: Generator) -> Drawn:
        return Drawn(self._rows[rng.integers(0, self._count, count)])

    def learned(self, rows: Array, priorities: Array) -> None:
        """Uniform sampling has no use for priorities."""

    def __len__(self) -> int:
        return self._count

    def save(self) -> Tree:
        return {"rows": self._rows[: self._count].copy()}

    def load(self, state: Tree) -> None:
        self._place[:] = -1
        self._count = 0
        self.ready(state["rows"])
