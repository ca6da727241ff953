"""PFSP: who is met how often, by each weighting."""

import numpy as np
import pytest

from sparring.league.matchmaking import HALF_LIFE_GAMES, WEIGHTINGS, WinRates, draw_opponent, opponent_chances

RATES = np.array([0.0, 0.25, 0.5, 1.0])


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [
        ("variance", [0, 0.1875, 0.25, 0]),
        ("linear", [1, 0.75, 0.5, 0]),
        ("capped", [0.5, 0.5, 0.5, 0]),
        ("squared", [1, 0.5625, 0.25, 0]),
    ],
)
def test_what_each_weighting_prefers(weighting, weights):
    np.testing.assert_allclose(opponent_chances(RATES, weighting), np.array(weights) / sum(weights))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_where_no_weight_is_left_all_are_met_alike(weighting):
    np.testing.assert_array_equal(opponent_chances(np.ones(4), weighting), np.full(4, 0.25))


def test_a_member_never_meets_itself():
    rates, rng = np.full((3, 3), 0.5), np.random.default_rng(0)
    assert {draw_opponent(1, rates, "variance", rng) for _ in range(50)} == {0, 2}


def test_what_a_learner_scored_counts_half_after_its_half_life_with_that_opponent():
    rates, games = WinRates(), int(HALF_LIFE_GAMES)
    rates.add("a", 0, 0, games)
    rates.add("b", 0, 0, games)
    rates.add("a", games, 0, 0)
    assert rates.of("a") == pytest.approx(1 / 1.5)
    assert (rates.of("b"), rates.of("c")) == (0.0, 0.5)
    assert rates.once_lost("a")
