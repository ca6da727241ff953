"""Sampling rows in proportion to their priorities: a sum tree in one flat array.

Each node has CHILDREN children, which lie together in one cache line. Level 0 is the root; the leaves are the rows.
A parent is always summed afresh from its children and never corrected by a difference, so sums do not drift
however long a run lasts.
"""

import numpy as np

from sparring.jit import compiled
from sparring.replay.rows import zeroed_pages
from sparring.wire.chunk import Array

CHILDREN = 4  # written out in _descend and _sum_up; why four: docs/performance.md
_ZERO, _BELOW = np.float32(0.0), np.float32(1.0 - 2.0**-24)  # times any float32: the greatest one below it


class SumTree:
    """Priorities of `capacity` rows, all 0 at first. A row of priority 0 is never drawn."""

    def __init__(self, capacity: int) -> None:
        sizes = [-(-capacity // CHILDREN) * CHILDREN]  # from the leaves up; all but the root are whole families
        while sizes[-1] > CHILDREN:
            sizes.append(-(-sizes[-1] // CHILDREN**2) * CHILDREN)
        sizes = [4 * CHILDREN, *reversed(sizes)]  # the root alone in its cache line, so that no family is in two
        self.capacity = capacity
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)  # of each level, and the end
        self._nodes = zeroed_pages(sum(sizes) * 4).view(np.float32)
        self._leaves = self._nodes[self._starts[-2] :][:capacity]

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._nodes[0])

    def __getitem__(self, rows: Array) -> Array:
        """Priorities of rows."""
        found: Array = self._leaves[rows]
        return found

    def all(self) -> Array:
        """A copy of every row's priority."""
        return self._leaves.copy()

    def set(self, rows: Array, priorities: Array | float) -> None:
        """Give rows these priorities; where a row comes twice, its last one stays."""
        if len(rows):
            values = np.full(len(rows), priorities, np.float32) if isinstance(priorities, float) else priorities
            _set(self._nodes, self._starts, rows, values)

    def draw(self, points: Array, exponent: float) -> tuple[Array, Array]:
        """One row from each of len(points) equal parts of the total, and (smallest priority / its own)^exponent.

        The rows lie side by side, each as wide as its priority; `points`, of [0, 1), say where in its part each is,
        and are overwritten.
        """
        rows, weight = np.empty(len(points), np.int64), np.empty(len(points), np.float32)
        _draw(self._nodes, self._starts, points, exponent, rows, weight)
        return rows, weight

    def clear(self, rows: Array) -> int:
        """Set the priorities of rows to 0; how many had any."""
        return int(_clear(self._nodes, self._starts, rows))

    def replace(self, rows: Array, values: Array, least: float, most: float, exponent: float) -> float:
        """Give (values + least)^exponent to those rows that have a priority already; the largest of them.

        Negative values and NaN count as 0, and values above `most` as that: one alone would spoil all sums.
        """
        return float(_replace(self._nodes, self._starts, rows, values, least, most, exponent))

    def load(self, priorities: Array) -> None:
        """All priorities at once, for rows 0 to len(priorities)."""
        self._nodes[:] = 0.0
        self.set(np.arange(len(priorities)), priorities)


@compiled
def _set(nodes: Array, starts: Array, rows: Array, values: Array) -> None:
    leaves = np.uint64(starts[-2])
    for i in range(len(rows)):
        nodes[leaves + np.uint64(rows[i])] = values[i]
    _sum_up(nodes, starts, rows)


@compiled
def _sum_up(nodes: Array, starts: Array, rows: Array) -> None:
    """Sum every node above `rows` afresh, from the parents of leaves to the root."""
    shift = np.uint64(0)
    for level in range(len(starts) - 3, -1, -1):
        shift += np.uint64(2)  # of 4 children
        above, below = np.uint64(starts[level]), np.uint64(starts[level + 1])
        families = (starts[level + 2] - starts[level + 1]) // CHILDREN
        whole = families <= len(rows)  # costs no more than those above `rows`
        for i in range(families if whole else len(rows)):
            # Of rows that share a parent each sums it: to find that out would cost more.
            parent = np.uint64(i) if whole else np.uint64(rows[i]) >> shift
            first = below + (parent << np.uint64(2))
            half = nodes[first] + nodes[first + np.uint64(1)]
            nodes[above + parent] = half + (nodes[first + np.uint64(2)] + nodes[first + np.uint64(3)])


@compiled
def _clear(nodes: Array, starts: Array, rows: Array) -> int:
    live, leaves = 0, np.uint64(starts[-2])
    for i in range(len(rows)):
        leaf = leaves + np.uint64(rows[i])
        if nodes[leaf] > 0.0:
            live += 1
            nodes[leaf] = 0.0  # at once: a row that comes twice counts once
    if live:
        _sum_up(nodes, starts, rows)
    return live


@compiled
def _replace(
    nodes: Array, starts: Array, rows: Array, values: Array, least: float, most: float, exponent: float
) -> float:
    leaves, largest, power = np.uint64(starts[-2]), _ZERO, np.float32(exponent)
    raised = np.zeros(len(rows), np.float32)
    for i in range(len(rows)):
        if nodes[leaves + np.uint64(rows[i])] > _ZERO:
            value = min(values[i], most) if values[i] > _ZERO else 0.0
            raised[i] = np.float32(value + least) ** power
            largest = max(largest, raised[i])
    _set(nodes, starts, rows, raised)
    return float(largest)


@compiled
def _draw(nodes: Array, starts: Array, points: Array, exponent: float, rows: Array, weight: Array) -> None:
    count, leaves, least, power = len(points), np.uint64(starts[-2]), np.float32(np.inf), np.float32(exponent)
    left = np.empty(count, np.float32)  # as fine as the sums are
    level = _place(nodes, starts, points, rows, left)
    _descend(nodes, starts, level + 1, left, rows)
    for i in range(count):
        weight[i] = nodes[leaves + np.uint64(rows[i])]
        least = min(least, weight[i])
    for i in range(count):
        weight[i] = (least / weight[i]) ** power


@compiled
def _place(nodes: Array, starts: Array, points: Array, rows: Array, left: Array) -> int:
    """Put each point into a node of the lowest level that has no more nodes than points; that level.

    The points ascend, so no level above it is descended. Without this, and without the copy of four words written out
    in gather.py, a sample of 256 from a million rows took 91 µs instead of 73 (a busy machine).
    The end of each node falls into the part of one known point, and so lies before or after that point.
    """
    count, level = len(points), 0
    while level + 2 < len(starts) and starts[level + 2] - starts[level + 1] <= count:
        level += 1
    first, size = np.uint64(starts[level]), starts[level + 1] - starts[level]
    ends, begun, passed = np.empty(size + 1, np.float64), np.zeros(count + 1, np.int64), 0.0
    ends[0] = 0.0
    for node in range(size):
        passed += nodes[first + np.uint64(node)]
        ends[node + 1] = passed
    scale = passed / count
    for i in range(count):
        points[i] = min((i + points[i]) * scale, passed * (1.0 - 2.0**-53))  # a little before the end of all
    for node in range(size):
        point = min(int(ends[node + 1] / scale), count - 1)
        begun[point + int(points[point] < ends[node + 1])] += 1  # the nodes that this point is the first beyond
    node = 0
    for i in range(count):
        node += begun[i]
        rows[i] = min(node, size - 1)
        left[i] = max(0.0, points[i] - ends[rows[i]])
    return level


@compiled
def _descend(nodes: Array, starts: Array, first_level: int, left: Array, rows: Array) -> None:
    """From nodes `rows` of the level above `first_level` to leaves; `left` is how far into each its goal lies."""
    # All descents go down together, a level at a time: their reads do not wait for one another. Which half of a family,
    # and which of the two, are asked without a loop or a branch, and indexes are unsigned for the same reason.
    for level in range(first_level, len(starts) - 1):
        start = np.uint64(starts[level])
        for i in range(len(rows)):
            family = rows[i] * 4
            first = start + np.uint64(family)
            one, three = nodes[first], nodes[first + np.uint64(2)]
            lower, upper = one + nodes[first + np.uint64(1)], three + nodes[first + np.uint64(3)]
            beyond = (lower <= left[i]) & (upper > _ZERO)
            width, half = three if beyond else one, upper if beyond else lower
            # Where rounding put it past the end of its half, it is a little before: never in a child of no width.
            goal = min(left[i] - (lower if beyond else _ZERO), half * _BELOW)
            second = width <= goal
            rows[i] = family + 2 * int(beyond) + int(second)
            left[i] = goal - (width if second else _ZERO)
