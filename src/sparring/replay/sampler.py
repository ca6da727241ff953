"""Which steps of a table are sampled next: samplers, and the limit on one uploader's share of a batch."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from sparring.replay.sumtree import SumTree
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree, frozen

MIN_PRIORITY = 1e-6  # added to every error, so that every step can be sampled again
MAX_PRIORITY = 1e30  # a million of them can be summed in float32
REDRAWS = 4  # of those rows of a batch by which one uploader exceeds its share


class Drawn(NamedTuple):
    """Rows of the table, and the importance weight of each; None: all weigh the same."""

    rows: Array  # int64 [count]
    weight: Array | None = None  # float32 [count]


class Sampler:
    """Keeps an index of the rows that may be sampled. What it says of priorities here is for samplers without any."""

    label: str | None = None  # the table's column whose values `add` is given with the rows; None: no column

    def __len__(self) -> int:
        """How many rows may be sampled."""
        raise NotImplementedError

    def set_initial_priorities(self, rows: Array, priorities: Array) -> None:
        """The actor's estimates for rows that are not added yet."""

    def add(self, rows: Array, label: Array | None = None) -> None:
        """These rows, none of which is in the index, may be sampled from now on."""
        raise NotImplementedError

    def remove(self, rows: Array) -> None:
        """These rows may not be sampled until `add` names them again; those not in the index are ignored."""
        raise NotImplementedError

    def draw(self, count: int, rng: Generator) -> Drawn:
        """`count` rows with replacement; the index is not empty."""
        raise NotImplementedError

    def weights(self, rows: Array) -> Array | None:
        """The importance weight of each of these rows in one batch, float32; None: all weigh the same."""
        return None

    def update_priorities(self, rows: Array, priorities: Array) -> None:
        """The learner's new priorities (errors) of rows that were sampled."""

    def save(self) -> Tree:
        """Everything that `load` needs, in arrays of its own."""
        raise NotImplementedError

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        raise NotImplementedError


class Uniform(Sampler):
    """Every row is as likely as any other.

    The rows that may be sampled lie packed in `_rows`, and `_place` says where each is, so that drawing is one
    lookup, and adding or removing moves one entry per row.
    """

    def __init__(self, capacity: int) -> None:
        self._rows = np.zeros(capacity, np.int64)
        self._place = np.full(capacity, -1, np.int64)
        self._count = 0

    def add(self, rows: Array, label: Array | None = None) -> None:
        end = self._count + len(rows)
        self._rows[self._count : end] = rows
        self._place[rows] = np.arange(self._count, end)
        self._count = end

    def remove(self, rows: Array) -> None:
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

    def __len__(self) -> int:
        return self._count

    def save(self) -> Tree:
        return {"rows": frozen(self._rows[: self._count].astype(np.int32))}  # half the bytes to copy while all wait

    def load(self, state: Tree) -> None:
        self._place[:] = -1
        self._count = 0
        self.add(state["rows"])


class Prioritised(Sampler):
    """P(i) ∝ p_i^α with p_i the last error of row i (Schaul et al. 2016, proportional).

    A new row gets the largest priority seen, so that it is sampled soon, unless the actor gave an initial priority.
    Weights are (n·P(i))^-β over the largest of the batch: the gradient is only ever made smaller. β rises from
    `importance_exponent` to 1 in a straight line while `importance_samples` rows are drawn; 0 keeps it.
    """

    def __init__(
        self, capacity: int, priority_exponent: float, importance_exponent: float, importance_samples: int = 0
    ) -> None:
        self._tree = SumTree(capacity)
        self._alpha, self._beta, self._beta_samples = priority_exponent, importance_exponent, importance_samples
        self._largest = 1.0  # of p^α
        self._count = 0
        self._drawn = 0
        self._initial: Array | None = None  # p of rows that are not added yet; negative: none was given

    @property
    def importance_exponent(self) -> float:
        """β as it stands."""
        gone = min(1.0, self._drawn / self._beta_samples) if self._beta_samples else 0.0
        return self._beta + gone * (1.0 - self._beta)

    def set_initial_priorities(self, rows: Array, priorities: Array) -> None:
        if self._initial is None:
            self._initial = np.full(self._tree.capacity, -1.0, np.float32)
        self._initial[rows] = priorities

    def add(self, rows: Array, label: Array | None = None) -> None:
        self._count += len(rows)
        self._tree.set(rows, self._largest)
        if self._initial is not None:
            given = self._initial[rows]
            estimated = ~(given < 0)  # NaN too, which counts as 0
            self.update_priorities(rows[estimated], given[estimated])
            self._tree.set(rows[~estimated], self._largest)
            self._initial[rows] = -1.0

    def remove(self, rows: Array) -> None:
        if len(rows):
            self._count -= self._tree.clear(rows)
            if self._initial is not None:
                self._initial[rows] = -1.0

    def draw(self, count: int, rng: Generator) -> Drawn:
        # One point in each of `count` equal parts: as likely for every row, with less variance (ibid., appendix B).
        # n and the total are the same for the whole batch, so (n·P(i))^-β over its maximum is (p_i / p_least)^-β.
        rows, weight = self._tree.draw(rng.random(count), self.importance_exponent)
        self._drawn += count
        return Drawn(rows, weight)

    def weights(self, rows: Array) -> Array | None:
        drawn = self._tree[rows].astype(np.float64)
        return np.asarray((drawn.min() / drawn) ** self.importance_exponent, np.float32)

    def update_priorities(self, rows: Array, priorities: Array) -> None:
        if len(rows):  # rows that were removed since stay out: their priority is 0
            errors = np.ascontiguousarray(priorities, np.float32)
            largest = self._tree.replace(rows, errors, MIN_PRIORITY, MAX_PRIORITY, self._alpha)
            self._largest = max(self._largest, largest)

    @property
    def total(self) -> float:
        """Σ p^α of all rows."""
        return float(self._tree.total)

    def chance(self, rows: Array) -> Array:
        """P of each of these rows, as it stands."""
        return np.asarray(self._tree[rows] / self.total)

    def priorities(self) -> Array:
        """p^α of every row, 0 where it may not be sampled."""
        return self._tree.all()

    def __len__(self) -> int:
        return self._count

    def save(self) -> Tree:
        return {
            "priorities": frozen(self.priorities()),
            "largest": self._largest,
            "count": self._count,
            "drawn": self._drawn,
            "initial": None if self._initial is None else frozen(self._initial.copy()),
        }

    def load(self, state: Tree) -> None:
        self._tree.load(state["priorities"])
        self._largest, self._count, self._drawn = state["largest"], state["count"], state["drawn"]
        self._initial = None if state["initial"] is None else state["initial"].copy()


class Newest(Sampler):
    """The rows that were added last, each once; the same ones again until new ones are added."""

    def __init__(self, capacity: int) -> None:
        self._order = np.zeros(2 * capacity, np.int64)  # in the order in which they were added
        self._place = np.full(capacity, -1, np.int64)  # of each row in it
        self._end = 0
        self._count = 0

    def add(self, rows: Array, label: Array | None = None) -> None:
        if self._end + len(rows) > len(self._order):
            self._pack(self._live(self._end))
        end = self._end + len(rows)
        self._order[self._end : end] = rows
        self._place[rows] = np.arange(self._end, end)
        self._end, self._count = end, self._count + len(rows)

    def remove(self, rows: Array) -> None:
        self._count -= int((self._place[rows] >= 0).sum())
        self._place[rows] = -1

    def draw(self, count: int, rng: Generator) -> Drawn:
        look = count
        while len(found := self._live(look)) < min(count, self._count):
            look *= 2
        return Drawn(np.resize(found[::-1], count))  # np.resize repeats

    def __len__(self) -> int:
        return self._count

    def save(self) -> Tree:
        return {"rows": self._live(self._end)}

    def load(self, state: Tree) -> None:
        self._place[:] = -1
        self._pack(state["rows"])
        self._count = self._end

    def _live(self, look: int) -> Array:
        """Those among the last `look` that were not removed, oldest first."""
        first = max(0, self._end - look)
        part = self._order[first : self._end]
        found: Array = part[self._place[part] == np.arange(first, self._end)]
        return found

    def _pack(self, rows: Array) -> None:
        self._end = len(rows)
        self._order[: self._end] = rows
        self._place[rows] = np.arange(self._end)


class ByEpisode(Sampler):
    """Every episode is as likely as any other, and so is each of its steps: long games do not drown short ones.

    The index by episode is rebuilt when a sixteenth of the rows was added or removed since; until then new rows wait,
    and where a removed row is drawn, another is drawn instead.
    """

    label = "episode"

    def __init__(self, capacity: int) -> None:
        self._episode = np.full(capacity, -1, np.int64)
        self._count = 0
        self._changes = 0
        self._rows = self._first = self._length = np.zeros(0, np.int64)

    def add(self, rows: Array, label: Array | None = None) -> None:
        assert label is not None
        self._episode[rows] = label
        self._count += len(rows)
        self._changes += len(rows)

    def remove(self, rows: Array) -> None:
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

    def __len__(self) -> int:
        return self._count

    def save(self) -> Tree:
        index = {"rows": self._rows, "first": self._first, "length": self._length, "changes": self._changes}
        return index | {"episode": self._episode.copy()}

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


class BySource(Sampler):
    """A fixed share of each batch from each source that has any rows; uniform within a source."""

    label = "source"

    def __init__(self, capacity: int, shares: Mapping[int, float]) -> None:
        self._shares = dict(sorted(shares.items()))  # by the number of a source
        self._rows = {number: Uniform(capacity) for number in self._shares}

    def add(self, rows: Array, label: Array | None = None) -> None:
        assert label is not None
        for number, held in self._rows.items():
            mine = rows[label == number]
            if len(mine):
                held.add(mine)

    def remove(self, rows: Array) -> None:
        for held in self._rows.values():
            held.remove(rows)

    def draw(self, count: int, rng: Generator) -> Drawn:
        there = {number: share for number, share in self._shares.items() if len(self._rows[number])}
        ends = np.round(np.cumsum(list(there.values())) / sum(there.values()) * count).astype(int)
        sizes = np.diff(ends, prepend=0)
        parts = [self._rows[number].draw(int(size), rng).rows for number, size in zip(there, sizes, strict=True)]
        return Drawn(np.concatenate(parts))

    def __len__(self) -> int:
        return sum(len(held) for held in self._rows.values())

    def save(self) -> Tree:
        return {str(number): held.save() for number, held in self._rows.items()}

    def load(self, state: Tree) -> None:
        for number, held in self._rows.items():
            held.load(state[str(number)])


def limit_uploaders(sampler: Sampler, drawn: Drawn, uploader: Array, share: float, rng: Generator) -> Drawn:
    """No uploader (a column of the table) has more than its share of the batch: the excess is drawn again, REDRAWS
    times at most; what is still too much gets weight 0."""
    rows, limit = drawn.rows, max(1, int(share * len(drawn.rows)))
    excess = excess_rows(uploader[rows], limit)
    if not len(excess):
        return drawn
    for _ in range(REDRAWS):
        rows[excess] = sampler.draw(len(excess), rng).rows  # no part of a larger draw: its rows may be in order
        excess = excess_rows(uploader[rows], limit)
        if not len(excess):
            break
    weight = sampler.weights(rows)
    if len(excess):
        weight = np.ones(len(rows), np.float32) if weight is None else weight
        weight[excess] = 0.0
    return Drawn(rows, weight)


def excess_rows(uploader: Array, limit: int) -> Array:
    """Places of all but the first `limit` of each uploader; uploader 0 (this run itself) has no limit."""
    order = np.argsort(uploader, kind="stable")
    there = uploader[order]
    rank = np.arange(len(uploader)) - np.searchsorted(there, there)
    found: Array = order[(rank >= limit) & (there > 0)]
    return found
