"""Every sampler against a naive one: what may be drawn, how often, and that it goes into bytes and back."""

import numpy as np
import pytest

from sparring.replay.sampler import ByEpisode, BySource, Newest, Prioritised, Uniform
from sparring.wire.tree import pack, unpack

CAPACITY = 60
SAMPLERS = {
    "uniform": lambda: Uniform(CAPACITY),
    "prioritised": lambda: Prioritised(CAPACITY, 0.7, 0.5),
    "newest": lambda: Newest(CAPACITY),
    "by-episode": lambda: ByEpisode(CAPACITY),
    "by-source": lambda: BySource(CAPACITY, {0: 1.0, 1: 2.0, 2: 1.0}),
}


def chi_square_is_likely(counts, wanted):
    """Within five standard deviations of what chance gives."""
    freedom = len(wanted) - 1
    return abs(((counts - wanted) ** 2 / wanted).sum() - freedom) < 5 * np.sqrt(2 * max(freedom, 1))


def label_of(sampler, rows):
    return None if sampler.label is None else rows % 3


def changed(sampler, ready, rng):
    """One random arrival, departure or lesson; `ready` is kept in the order of arrival."""
    rows = rng.choice(CAPACITY, int(rng.integers(1, 12)), replace=False)
    what = rng.random()
    if what < 0.5:
        fresh = np.array([row for row in rows if row not in ready], np.int64)
        sampler.add(fresh, label_of(sampler, fresh))
        ready.extend(fresh.tolist())
    elif what < 0.8:
        sampler.remove(rows)
        ready[:] = [row for row in ready if row not in rows]
    else:
        sampler.update_priorities(rows, rng.random(len(rows)))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("seed", range(8))
def test_only_what_is_ready_is_drawn_and_a_copy_draws_the_same(name, seed):
    rng, sampler, ready = np.random.default_rng(seed), SAMPLERS[name](), []
    for _ in range(150):
        changed(sampler, ready, rng)
        assert len(sampler) == len(ready)
        if not ready:
            continue
        drawn = sampler.draw(40, rng)
        assert np.isin(drawn.rows, ready).all()
        assert len(drawn.rows) == 40
        weight = sampler.weights(drawn.rows)
        assert (weight is None) == (drawn.weight is None)
        assert weight is None or np.allclose(weight, drawn.weight, rtol=1e-5)
        copy = SAMPLERS[name]()
        copy.load(unpack(pack(sampler.save())))
        one, two = (which.draw(20, np.random.default_rng(5)).rows for which in (sampler, copy))
        assert (one == two).all()


def test_priorities_decide_how_often_and_weights_undo_it():
    rng = np.random.default_rng(4)
    rows, errors, alpha, beta, draws = np.arange(50), rng.exponential(1.0, 50) + 0.05, 0.6, 1.0, 200_000
    sampler = Prioritised(CAPACITY, alpha, beta)
    sampler.add(rows)
    sampler.update_priorities(rows, errors)
    drawn = sampler.draw(draws, rng)
    share = (errors + 1e-6) ** alpha
    share /= share.sum()
    counts = np.bincount(drawn.rows, minlength=50)
    assert chi_square_is_likely(counts, draws * share) or np.abs(counts - draws * share).max() <= 2  # it is stratified
    naive = (50 * share[drawn.rows]) ** -beta
    assert np.allclose(drawn.weight, naive / naive.max(), rtol=1e-5)
    corrected = np.bincount(drawn.rows, weights=drawn.weight, minlength=50)
    assert np.allclose(corrected / corrected.sum(), 1 / 50, rtol=0.05)


def test_a_newcomer_is_as_likely_as_the_likeliest_and_what_went_stays_away():
    sampler = Prioritised(CAPACITY, 1.0, 0.0)
    sampler.add(np.array([0, 1]))
    sampler.update_priorities(np.array([0, 1]), np.array([9.0, 1.0]))
    sampler.add(np.array([2]))
    counts = np.bincount(sampler.draw(19_000, np.random.default_rng(0)).rows)
    assert counts == pytest.approx([9000, 1000, 9000], abs=10)
    sampler.remove(np.array([0]))
    sampler.update_priorities(np.array([0]), np.array([100.0]))
    assert 0 not in sampler.draw(1000, np.random.default_rng(0)).rows
    assert len(sampler) == 2


def test_an_error_that_is_no_number_spoils_no_other_row():
    sampler, rng = Prioritised(CAPACITY, 1.0, 1.0), np.random.default_rng(0)
    given = np.array([np.nan, np.inf, -3.0, 1.0], np.float32)
    sampler.set_initial_priorities(np.arange(4), given)
    sampler.add(np.arange(4))
    assert np.isfinite(sampler.total)
    sampler.update_priorities(np.arange(4), given[::-1])
    assert np.isfinite(sampler.total)
    sampler.update_priorities(np.arange(4), np.array([1.0, np.nan, 1.0, 1.0], np.float32))
    drawn = sampler.draw(3000, rng)
    assert np.isfinite(drawn.weight).all()
    assert np.bincount(drawn.rows, minlength=4) == pytest.approx([1000, 0, 1000, 1000], abs=10)
    assert len(sampler) == 4


def test_short_episodes_are_as_likely_as_long_ones():
    sampler, rng, draws = ByEpisode(1000), np.random.default_rng(6), 100_000
    episode = np.repeat(np.arange(8), [1, 2, 3, 500, 10, 20, 4, 60])
    sampler.add(np.arange(len(episode)), episode)
    rows = sampler.draw(draws, rng).rows
    assert chi_square_is_likely(np.bincount(episode[rows]), np.full(8, draws / 8))
    within = np.bincount(rows[episode[rows] == 5] - np.flatnonzero(episode == 5)[0], minlength=20)
    assert chi_square_is_likely(within, np.full(20, within.sum() / 20))


def test_sources_keep_their_shares_and_one_that_is_empty_leaves_its_own_to_the_others():
    sampler, rng = BySource(1000, {0: 3.0, 1: 1.0, 2: 4.0}), np.random.default_rng(0)
    source = np.repeat([0, 1], [10, 900])
    sampler.add(np.arange(910), source)
    assert np.bincount(source[sampler.draw(400, rng).rows]).tolist() == [300, 100]
    sampler.remove(np.arange(10))
    assert (source[sampler.draw(400, rng).rows] == 1).all()


def test_the_newest_come_first_and_again_where_there_are_too_few():
    sampler, rng = Newest(100), np.random.default_rng(0)
    for turn in range(50):
        rows = np.arange(turn * 10, turn * 10 + 10) % 100
        sampler.remove(rows)
        sampler.add(rows)
    assert sampler.draw(12, rng).rows.tolist() == [99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88]
    sampler.remove(np.arange(2, 98))
    assert sampler.draw(6, rng).rows.tolist() == [99, 98, 1, 0, 99, 98]
