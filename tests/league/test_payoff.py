"""The matrix of results: wins, draws and losses of each against each."""

import uuid

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
