"""Which steps of a table a learner sees next. A sampler is told what arrives and what was learned."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.random import Generator

from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

LEAST_PRIORITY = 1e-6  # added to every error, so that nothing that was learned once is out of reach
MOST_PRIORITY = 1e30  # a million of them can be summed in float32


class Drawn(NamedTuple):
    """Rows of the table, and the importance of each; None says that all weigh the same."""

    rows: Array  # int64 [count]
    weight: Array | None = None  # float32 [count]


class Sampler(Protocol):
    """`by` names the column of the table whose values `ready` is given with the rows; None: it wants none."""

    by: str | None

    def __len__(self) -> int:
        """How many rows may be drawn."""
        ...

    def expect(self, rows: Array, priorities: Array) -> None:
        """What whoever played them thinks of rows that are not ready yet."""
        ...

    def ready(self, rows: Array, label: Array | None = None) -> None:
        """These rows, none of which was ready, may be drawn from now on."""
        ...

    def gone(self, rows: Array) -> None:
        """These rows hold something else now, and may not be drawn until `ready` names them again."""
        ...

    def draw(self, count: int, rng: Generator) -> Drawn:
        """`count` rows with replacement; at least one is ready."""
        ...

    def weigh(self, rows: Array) -> Array | None:
        """The importance of each of these rows in one batch, float32; None says that all weigh the same."""
        ...

    def learned(self, rows: Array, priorities: Array) -> None:
        """What the learner said of the rows that it was given."""
        ...

    def save(self) -> Tree:
        """Everything that `load` needs, in arrays of its own."""
        ...

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        ...


class Uniform:
    """Every ready row is as likely as any other.

    The ready rows stand packed in `_rows`, and `_place` says where each stands, so that drawing is one
    lookup and coming or going moves one entry per row.
    """

    by: str | None = None

    def __init__(self, capacity: int) -> None:
        self._rows = np.zeros(capacity, np.int64)
        self._place = np.full(capacity, -1, np.int64)
        self._count = 0

    def expect(self, rows: Array, priorities: Array) -> None:
        """Uniform sampling has no use for priorities."""

    def ready(self, rows: Array, label: Array | None = None) -> None:
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

    def weigh(self, rows: Array) -> Array | None:
        return None

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


class Prioritised:
    """P(i) ∝ p_i^α with p_i the last error of row i (Schaul et al. 2016, proportional).

    A newcomer has the largest priority seen, so that it is learned once soon, unless whoever played it gave one.
    Weights are (n·P(i))^-β over the largest of the batch: the gradient is only ever made smaller. β rises from
    `importance_exponent` to 1 in a straight line while `importance_samples` rows are drawn; 0 keeps it.
    """

    by: str | None = None

    def __init__(
        self, capacity: int, priority_exponent: float, importance_exponent: float, importance_samples: int = 0
    ) -> None:
        from sparring.replay.random_points import points  # compile: whoever does not ask for them need not wait
        from sparring.replay.sumtree import SumTree

        self._tree, self._points = SumTree(capacity), points
        self._alpha, self._beta, self._beta_samples = priority_exponent, importance_exponent, importance_samples
        self._largest = 1.0  # of p^α
        self._count = 0
        self._drawn = 0
        self._expected: Array | None = None  # p of rows that are not ready yet; below 0: none was given

    @property
    def importance_exponent(self) -> float:
        """β as it stands."""
        gone = min(1.0, self._drawn / self._beta_samples) if self._beta_samples else 0.0
        return self._beta + gone * (1.0 - self._beta)

    def expect(self, rows: Array, priorities: Array) -> None:
        if self._expected is None:
            self._expected = np.full(self._tree.capacity, -1.0, np.float32)
        self._expected[rows] = priorities

    def ready(self, rows: Array, label: Array | None = None) -> None:
        self._count += len(rows)
        if self._expected is None:
            self._tree.set(rows, self._largest)
            return
        given = self._expected[rows].astype(np.float64)
        raised = (np.fmin(np.fmax(given, 0.0), MOST_PRIORITY) + LEAST_PRIORITY) ** self._alpha  # no number: 0
        self._largest = max(self._largest, float(raised.max(initial=0.0)))
        self._tree.set(rows, np.where(given < 0, self._largest, raised))
        self._expected[rows] = -1.0

    def gone(self, rows: Array) -> None:
        if len(rows):
            self._count -= self._tree.clear(rows)
            if self._expected is not None:
                self._expected[rows] = -1.0

    def draw(self, count: int, rng: Generator) -> Drawn:
        # One point in each of `count` equal parts: as likely for every row, with less variance (ibid., appendix B).
        # n and the total are the same for the whole batch, so (n·P(i))^-β over its maximum is (p_i / p_least)^-β.
        rows, weight = self._tree.draw_weighted(self._points(count, rng), self.importance_exponent)
        self._drawn += count
        return Drawn(rows, weight)

    def weigh(self, rows: Array) -> Array | None:
        drawn = self._tree[rows].astype(np.float64)
        return np.asarray((drawn.min() / drawn) ** self.importance_exponent, np.float32)

    def learned(self, rows: Array, priorities: Array) -> None:
        if len(rows):  # what went since then stays away
            errors = np.ascontiguousarray(priorities, np.float32)
            largest = self._tree.replace(rows, errors, LEAST_PRIORITY, MOST_PRIORITY, self._alpha)
            self._largest = max(self._largest, largest)

    @property
    def total(self) -> float:
        """Σ p^α of the rows that are ready."""
        return float(self._tree.total)

    def chance(self, rows: Array) -> Array:
        """P of each of these rows, as it stands."""
        return np.asarray(self._tree[rows] / self.total)

    def priorities(self) -> Array:
        """p^α of every row, 0 where it is not ready."""
        return self._tree.all()

    def __len__(self) -> int:
        return self._count

    def save(self) -> Tree:
        return {
            "wide": self.priorities(),
            "largest": self._largest,
            "count": self._count,
            "drawn": self._drawn,
            "expected": None if self._expected is None else self._expected.copy(),
        }

    def load(self, state: Tree) -> None:
        self._tree.load(state["wide"])
        self._largest, self._count, self._drawn = state["largest"], state["count"], state["drawn"]
        self._expected = None if state["expected"] is None else state["expected"].copy()


class Newest:
    """The rows that became ready last, each once; the same ones again while nothing new comes."""

    by: str | None = None

    def __init__(self, capacity: int) -> None:
        self._order = np.zeros(2 * capacity, np.int64)  # in the order in which they became ready
        self._place = np.full(capacity, -1, np.int64)  # of each row in it
        self._end = 0
        self._count = 0

    def expect(self, rows: Array, priorities: Array) -> None:
        """What is newest does not depend on it."""

    def ready(self, rows: Array, label: Array | None = None) -> None:
        if self._end + len(rows) > len(self._order):
            self._pack(self._live(self._end))
        end = self._end + len(rows)
        self._order[self._end : end] = rows
        self._place[rows] = np.arange(self._end, end)
        self._end, self._count = end, self._count + len(rows)

    def gone(self, rows: Array) -> None:
        self._count -= int((self._place[rows] >= 0).sum())
        self._place[rows] = -1

    def draw(self, count: int, rng: Generator) -> Drawn:
        look = count
        while len(found := self._live(look)) < min(count, self._count):
            look *= 2
        return Drawn(np.resize(found[::-1], count))  # np.resize repeats

    def weigh(self, rows: Array) -> Array | None:
        return None

    def learned(self, rows: Array, priorities: Array) -> None:
        """What is newest does not depend on it."""

    def __len__(self) -> int:
        return self._count

    def save(self) -> Tree:
        return {"rows": self._live(self._end)}

    def load(self, state: Tree) -> None:
        self._place[:] = -1
        self._pack(state["rows"])
        self._count = self._end

    def _live(self, look: int) -> Array:
        """The ready ones among the last `look`, oldest first."""
        first = max(0, self._end - look)
        part = self._order[first : self._end]
        found: Array = part[self._place[part] == np.arange(first, self._end)]
        return found

    def _pack(self, rows: Array) -> None:
        self._end = len(rows)
        self._order[: self._end] = rows
        self._place[rows] = np.arange(self._end)


class ByEpisode:
    """Every episode is as likely as any other, and so is each of its steps: long games do not drown short ones.

    The index by episode is made anew when a sixteenth of the rows has come or gone since; until then newcomers
    wait, and a row that went is drawn again.
    """

    by: str | None = "episode"

    def __init__(self, capacity: int) -> None:
        self._episode = np.full(capacity, -1, np.int64)
        self._count = 0
        self._changes = 0
        self._rows = self._first = self._length = np.zeros(0, np.int64)

    def expect(self, rows: Array, priorities: Array) -> None:
        """Episodes have no priorities."""

    def ready(self, rows: Array, label: Array | None = None) -> None:
        assert label is not None
        self._episode[rows] = label
        self._count += len(rows)
        self._changes += len(rows)

    def gone(self, rows: Array) -> None:
        live = rows[self._episode[rows] >= 0]
        self._episode[live] = -1
        self._count -= len(live)
        self._changes += len(live)

    def draw(self, count: int, rng: Generator) -> Drawn:
        if not len(self._rows) or 16 * self._changes > self._count:
            self._index()
        rows = self._pick(count, rng)
        while len(lost := np.flatnonzero(self._episode[rows] < 0)):
            if 2 * len(lost) > count:
                self._index()
            rows[lost] = self._pick(len(lost), rng)
        return Drawn(rows)

    def weigh(self, rows: Array) -> Array | None:
        return None

    def learned(self, rows: Array, priorities: Array) -> None:
        """Episodes have no priorities."""

    def __len__(self) -> int:
        return self._count

    def save(self) -> Tree:
        return {"episode": self._episode.copy(), "rows": self._rows, "first": self._first, "length": self._length} | {
            "changes": self._changes
        }

    def load(self, state: Tree) -> None:
        self._episode[:] = state["episode"]
        self._rows, self._first, self._length = state["rows"], state["first"], state["length"]
        self._count, self._changes = int((self._episode >= 0).sum()), state["changes"]

    def _index(self) -> None:
        ready = np.flatnonzero(self._episode >= 0)
        self._rows = ready[np.argsort(self._episode[ready], kind="stable")]
        _, self._first, self._length = np.unique(self._episode[self._rows], return_index=True, return_counts=True)
        self._changes = 0

    def _pick(self, count: int, rng: Generator) -> Array:
        chosen = rng.integers(0, len(self._first), count)
        picked: Array = self._rows[self._first[chosen] + rng.integers(0, self._length[chosen])]
        return picked


class BySource:
    """A fixed share of each batch from each source that has any ready rows; uniform within a source."""

    by: str | None = "source"

    def __init__(self, capacity: int, shares: Mapping[int, float]) -> None:
        self._shares = dict(sorted(shares.items()))  # by the number of a source
        self._rows = {number: Uniform(capacity) for number in self._shares}

    def expect(self, rows: Array, priorities: Array) -> None:
        """Sources have no priorities."""

    def ready(self, rows: Array, label: Array | None = None) -> None:
        assert label is not None
        for number, held in self._rows.items():
            mine = rows[label == number]
            if len(mine):
                held.ready(mine)

    def gone(self, rows: Array) -> None:
        for held in self._rows.values():
            held.gone(rows)

    def draw(self, count: int, rng: Generator) -> Drawn:
        there = {number: share for number, share in self._shares.items() if len(self._rows[number])}
        ends = np.round(np.cumsum(list(there.values())) / sum(there.values()) * count).astype(int)
        sizes = np.diff(ends, prepend=0)
        parts = [self._rows[number].draw(int(size), rng).rows for number, size in zip(there, sizes, strict=True)]
        return Drawn(np.concatenate(parts))

    def weigh(self, rows: Array) -> Array | None:
        return None

    def learned(self, rows: Array, priorities: Array) -> None:
        """Sources have no priorities."""

    def __len__(self) -> int:
        return sum(len(held) for held in self._rows.values())

    def save(self) -> Tree:
        return {str(number): held.save() for number, held in self._rows.items()}

    def load(self, state: Tree) -> None:
        for number, held in self._rows.items():
            held.load(state[str(number)])
