"""Ratings from results: who is stronger, by how much, and with how much doubt."""

import uuid

import numpy as np
import pytest

from sparring.league.payoff import Match, Payoff, nash_mixture, ratings


def match(first, second, wins, draws, losses):
    return Match(uuid.uuid4().hex, first, second, 1, wins, draws, losses)


def test_a_win_rate_counts_draws_as_half_and_strangers_as_even():
    payoff = Payoff.of(["a", "b", "c"], [match("a", "b", 6, 2, 2), match("b", "a", 5, 0, 5), match("a", "d", 9, 0, 0)])
    assert payoff.win_rates[0, 1] == pytest.approx((7 + 5) / 20)
    assert payoff.win_rates[1, 0] == pytest.approx(1 - payoff.win_rates[0, 1])
    assert payoff.win_rates[0, 2] == 0.5
    assert payoff.games[0].tolist() == [0, 20, 0]


def test_ratings_come_back_from_games_that_were_drawn_by_them():
    true, rng = {"w": 0.0, "x": 100.0, "y": 250.0, "z": 400.0}, np.random.default_rng(1)
    matches = []
    for a in true:
        for b in true:
            if a != b:
                wins = int(rng.binomial(400, 1 / (1 + 10 ** ((true[b] - true[a]) / 400))))
                matches.append(match(a, b, wins, 0, 400 - wins))
    found = ratings(Payoff.of(list(true), matches), anchor="w")
    assert [one.member for one in found] == ["z", "y", "x", "w"]
    for one in found:
        assert one.elo == pytest.approx(true[one.member], abs=40)
        assert one.low <= true[one.member] <= one.high
    assert found[-1].low == found[-1].high == 0.0


def test_one_who_won_everything_has_a_finite_rating_with_much_doubt():
    few, many = (ratings(Payoff.of(["a", "b"], [match("a", "b", n, 0, 0)]))[0] for n in (2, 200))
    assert few.member == many.member == "a"
    assert 0 < few.elo < many.elo < 2_000
    assert few.high - few.low > 200
    assert few.low < 0 < many.low


def test_without_games_all_are_even():
    assert {one.elo for one in ratings(Payoff.of(["a", "b", "c"], []))} == {0.0}


def cycle(n):
    """Each of n members beats the next (n - 1) / 2 of them, and loses to the others."""
    ahead = (np.arange(n)[None, :] - np.arange(n)[:, None]) % n
    return np.where(ahead == 0, 0.5, (ahead <= (n - 1) // 2).astype(float))


@pytest.mark.parametrize("n", [3, 7])
def test_in_a_cycle_all_have_the_same_share_and_one_who_loses_to_all_has_none(n):
    rates = np.full((n + 1, n + 1), 0.5)
    rates[:n, :n], rates[:n, n], rates[n, :n] = cycle(n), 1.0, 0.0
    np.testing.assert_allclose(nash_mixture(rates), [*[1 / n] * n, 0.0], atol=0.02)


def test_one_who_beats_all_has_all_and_no_member_beats_a_mixture():
    np.testing.assert_allclose(
        nash_mixture(np.array([[0.5, 0.7, 0.6], [0.3, 0.5, 0.9], [0.4, 0.1, 0.5]])), [1, 0, 0], atol=0.01
    )
    drawn = np.random.default_rng(5).random((6, 6))
    rates = (drawn + 1 - drawn.T) / 2
    assert (rates @ nash_mixture(rates)).max() < 0.51
