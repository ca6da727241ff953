"""The matrix of results: wins, draws and losses of each against each, and how results of a learner age."""

import uuid

import numpy as np
import pytest

from sparring.league.payoff import Match, Payoff, members_in


def match(first, second, wins, draws, losses):
    return Match(uuid.uuid4().hex, first, second, 1, wins, draws, losses)


def test_a_win_rate_counts_draws_as_half_and_strangers_as_even():
    matches = [match("a", "b", 6, 2, 2), match("b", "a", 5, 0, 5), match("a", "d", 9, 0, 0)]
    payoff = Payoff.of(["a", "b", "c"], matches)
    assert payoff.win_rates[0, 1] == pytest.approx((7 + 5) / 20)
    assert payoff.win_rates[1, 0] == pytest.approx(1 - payoff.win_rates[0, 1])
    assert payoff.win_rates[0, 2] == 0.5
    assert payoff.games[0].tolist() == [0, 20, 0]
    assert (payoff.wins[0, 1], payoff.draws[0, 1], payoff.wins[1, 0]) == (11, 2, 7)
    assert members_in(matches) == ["a", "b", "d"]


def test_a_frozen_member_keeps_its_results_and_a_learners_count_half_after_its_half_life():
    matches = [match("learner", "old", 0, 0, 8), *[match("learner", "other", 4, 0, 4)] * 3, match("old", "x", 1, 0, 0)]
    frozen, aging = (Payoff.of(["learner", "old", "other", "x"], matches, aged) for aged in ({}, {"learner": 3.0}))
    assert frozen.wins[1, 0] == 8
    assert aging.wins[1, 0] == pytest.approx(4)
    assert aging.games[1, 3] == 1
    assert aging.games[0, 2] == pytest.approx(8 * (1 + 0.5 ** (1 / 3) + 0.5 ** (2 / 3)))
    np.testing.assert_allclose(aging.win_rates, frozen.win_rates)


def test_the_results_of_two_learners_age_by_the_matches_of_both():
    later = [match("a", "x", 1, 0, 0), match("b", "x", 1, 0, 0)]
    aged = Payoff.of(["a", "b", "x"], [match("a", "b", 2, 4, 2), *later], {"a": 1.0, "b": 1.0})
    assert (aged.wins[0, 1], aged.draws[0, 1], aged.draws[1, 0]) == (0.5, 1.0, 1.0)


def test_a_learner_that_became_better_is_seen_sooner_where_results_age():
    matches = [*[match("learner", "x", 0, 0, 10)] * 10, *[match("learner", "x", 10, 0, 0)] * 10]
    rates = [Payoff.of(["learner", "x"], matches, aged).win_rates[0, 1] for aged in ({}, {"learner": 5.0})]
    assert rates[0] == 0.5
    assert rates[1] > 0.75
