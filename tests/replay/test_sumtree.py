"""The sum tree against a sum over everything: what is drawn, what is never drawn, and sums that do not drift."""

import numpy as np
import pytest

from sparring.replay.sumtree import SumTree

CHI_SQUARE_SDS = 5.0


def naive_draw(priorities, points):
    """O(n) for each point."""
    return np.searchsorted(np.cumsum(priorities), points * priorities.sum(), side="right")


@pytest.mark.parametrize("seed", range(20))
def test_each_point_falls_on_the_row_that_a_sum_over_all_rows_finds(seed):
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(1, 3000))
    tree, priorities = SumTree(capacity), np.zeros(capacity)
    for _ in range(20):
        rows = rng.integers(0, capacity, int(rng.integers(1, 400)))
        values = rng.integers(0, 5, len(rows)).astype(float)  # whole numbers: both sums are exact
        tree.set(rows, values)
        for row, value in zip(rows, values, strict=True):
            priorities[row] = value
        assert tree.total == priorities.sum()
        assert (tree[np.arange(capacity)] == priorities).all()
        if tree.total > 0:
            points = rng.random(200)
            parts = (np.arange(200) + points) / 200
            assert (tree.draw(points.copy(), 0.0)[0] != naive_draw(priorities, parts)).sum() <= 1  # one on a border


def test_rows_are_drawn_in_proportion_to_their_priorities():
    rng, rows, draws = np.random.default_rng(11), 500, 40_000
    priorities = rng.exponential(1.0, rows) ** 2
    priorities[rng.random(rows) < 0.3] = 0.0
    tree = SumTree(rows)
    tree.set(np.arange(rows), priorities)
    counts = sum(np.bincount(tree.draw(rng.random(1), 0.0)[0], minlength=rows) for _ in range(draws))
    wanted = draws * priorities / priorities.sum()
    live = wanted > 5
    assert counts[priorities == 0].sum() == 0
    chi_square, freedom = ((counts - wanted)[live] ** 2 / wanted[live]).sum(), live.sum() - 1
    assert abs(chi_square - freedom) < CHI_SQUARE_SDS * np.sqrt(2 * freedom)


def test_sums_stay_exact_over_a_million_changes():
    rng, tree = np.random.default_rng(2), SumTree(1000)
    for _ in range(1000):
        tree.set(rng.integers(0, 1000, 1000), 10.0 ** rng.uniform(-12, 12, 1000))
    tree.set(np.arange(1000), 0.1)
    fresh = SumTree(1000)
    fresh.set(np.arange(1000), 0.1)
    assert tree.total == fresh.total
    tree.set(np.arange(1000), 0.0)
    assert tree.total == 0.0


def test_a_row_without_priority_is_never_drawn_however_the_sums_round():
    rng = np.random.default_rng(3)
    edges = np.array([0.0, np.nextafter(1.0, 0.0)])
    for _ in range(300):
        tree = SumTree(200)
        rows = rng.choice(200, int(rng.integers(1, 30)), replace=False)
        tree.set(rows, 10.0 ** rng.uniform(-15, 15, len(rows)))
        points = np.concatenate([edges, rng.random(50)])
        for part in (points, edges[:1].repeat(40), edges[1:].repeat(300)):  # the first and the last of each part
            assert np.isin(tree.draw(part.copy(), 0.5)[0], rows).all()


@pytest.mark.parametrize("seed", range(20))
def test_one_point_in_each_of_equal_parts_falls_where_a_sum_over_all_rows_says(seed):
    rng = np.random.default_rng(seed)
    capacity, count = int(rng.integers(1, 20_000)), int(rng.integers(1, 600))
    priorities = rng.integers(0, 5, capacity).astype(float)  # whole numbers: only a point on a border may be rounded
    priorities[rng.random(capacity) < rng.random()] = 0.0
    priorities[rng.integers(capacity)] = 1.0
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), priorities)
    points = rng.random(count)
    rows, weight = tree.draw(points.copy(), 0.5)
    assert (rows != naive_draw(priorities, (np.arange(count) + points) / count)).sum() <= 1
    np.testing.assert_allclose(weight, (priorities[rows].min() / priorities[rows]) ** 0.5, rtol=1e-6)


def test_the_last_of_two_priorities_of_a_row_stays():
    tree = SumTree(10)
    tree.set(np.array([3, 3, 4, 3]), np.array([1.0, 2.0, 7.0, 5.0]))
    assert tree[np.array([3, 4])].tolist() == [5.0, 7.0]
    assert tree.total == 12.0
