"""Ratings of small leagues whose answer is known: chains, cycles, copies, draws, members that never met."""

import itertools
import uuid

import numpy as np
import pytest

from sparring.league import ratings
from sparring.league.payoff import Match, Payoff
from sparring.league.ratings import (
    Result,
    alpha_rank,
    bayesian_ratings,
    elo_ratings,
    known_rates,
    nash_mixture,
    nash_skill,
    rating_curves,
    results_of,
    spinning_top,
)
from sparring.league.standings import Ladder


def match(first, second, wins, draws, losses):
    return Match(uuid.uuid4().hex, first, second, 1, wins, draws, losses)


def league(rates, games=100):
    """The payoff matrix of a round robin with these win rates."""
    names = [f"m{at}" for at in range(len(rates))]
    pairs = itertools.combinations(range(len(rates)), 2)
    return Payoff.of(
        names, [match(names[a], names[b], won := round(rates[a][b] * games), 0, games - won) for a, b in pairs]
    )


def cycle(n):
    """Each of n members beats the next (n - 1) / 2 of them, and loses to the others."""
    ahead = (np.arange(n)[None, :] - np.arange(n)[:, None]) % n
    return np.where(ahead == 0, 0.5, (ahead <= (n - 1) // 2).astype(float))


def chain(n, win=1.0):
    """Each beats all that come after it."""
    at = np.arange(n)
    return np.where(at[:, None] == at, 0.5, np.where(at[:, None] < at, win, 1.0 - win))


def test_elo_comes_back_from_games_that_were_drawn_by_it():
    true, rng = {"w": 0.0, "x": 100.0, "y": 250.0, "z": 400.0}, np.random.default_rng(1)
    matches = []
    for a, b in itertools.permutations(true, 2):
        wins = int(rng.binomial(400, 1 / (1 + 10 ** ((true[b] - true[a]) / 400))))
        matches.append(match(a, b, wins, 0, 400 - wins))
    found = elo_ratings(Payoff.of(list(true), matches), anchor="w")
    assert [one.member for one in found] == ["z", "y", "x", "w"]
    for one in found:
        assert one.elo == pytest.approx(true[one.member], abs=40)
        assert one.low <= true[one.member] <= one.high
    assert found[-1].low == found[-1].high == 0.0
    assert [name for name, _ in sorted(bayesian_ratings(results_of(matches)).items(), key=lambda one: -one[1].mu)] == [
        "z", "y", "x", "w",
    ]  # fmt: skip


def test_one_who_won_everything_has_a_finite_rating_with_much_doubt():
    few, many = (elo_ratings(Payoff.of(["a", "b"], [match("a", "b", n, 0, 0)]))[0] for n in (2, 200))
    assert few.member == many.member == "a"
    assert 0 < few.elo < many.elo < 2_000
    assert few.high - few.low > 200
    assert few.low < 0 < many.low


def test_without_games_all_are_even():
    assert {one.elo for one in elo_ratings(Payoff.of(["a", "b", "c"], []))} == {0.0}


def test_an_anchor_that_is_no_member_leaves_the_mean_at_zero():
    found = elo_ratings(Payoff.of(["a", "b"], [match("a", "b", 3, 0, 1)]), anchor="script:random")
    assert sum(one.elo for one in found) == pytest.approx(0)


@pytest.mark.parametrize("n", [3, 7])
def test_in_a_cycle_all_are_alike_and_one_who_loses_to_all_has_nothing(n):
    rates = np.full((n + 1, n + 1), 0.5)
    rates[:n, :n], rates[:n, n], rates[n, :n] = cycle(n), 1.0, 0.0
    nash = nash_mixture(rates)
    np.testing.assert_allclose(nash, [*[1 / n] * n, 0.0], atol=0.02)
    np.testing.assert_allclose(nash_skill(rates, nash), [*[0.5] * n, 0.0], atol=0.01)
    np.testing.assert_allclose(alpha_rank(cycle(n)), [1 / n] * n, atol=1e-12)
    top = spinning_top(league(cycle(n)))
    assert [len(layer.members) for layer in top.layers] == [n]
    assert (top.layers[0].strength, top.transitive, top.cyclic) == pytest.approx((0.5, 0.0, 1.0), abs=1e-9)
    assert (top.cyclic_triples, top.triples) == {3: (1, 1), 7: (14, 35)}[n]
    whole = spinning_top(league(rates))
    assert [len(layer.members) for layer in whole.layers] == [n, 1]
    assert 0.0 < whole.transitive < 1.0


def test_in_a_chain_the_first_has_everything_and_every_layer_has_one():
    rates = chain(5)
    np.testing.assert_allclose(nash_mixture(rates), [1, 0, 0, 0, 0], atol=1e-12)
    ranks = alpha_rank(rates)
    assert ranks[0] > 0.95
    assert (np.diff(ranks) < 0).all()
    top = spinning_top(league(rates))
    assert [layer.members for layer in top.layers] == [("m0",), ("m1",), ("m2",), ("m3",), ("m4",)]
    assert [layer.strength for layer in top.layers] == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    assert (top.cyclic_triples, top.triples) == (0, 10)
    steps = np.clip(0.5 + 0.1 * (np.arange(5)[None, :] - np.arange(5)[:, None]), 0, 1)  # each step is worth as much
    assert spinning_top(league(steps)).transitive == pytest.approx(1.0)


def test_no_member_beats_a_nash_mixture():
    for seed in range(5):
        drawn = np.random.default_rng(seed).random((12, 12))
        rates = (drawn + 1 - drawn.T) / 2
        assert (rates @ nash_mixture(rates)).max() < 0.501


def test_copies_of_a_member_share_and_change_nobody_elses_part():
    three, four = cycle(3), [0, 1, 2, 2]
    rates = three[np.ix_(four, four)]
    np.testing.assert_allclose(nash_mixture(rates), [1 / 3, 1 / 3, 1 / 6, 1 / 6], atol=0.01)
    ranks = alpha_rank(rates)
    assert ranks[2] == pytest.approx(ranks[3])
    assert [len(layer.members) for layer in spinning_top(league(rates)).layers] == [4]


@pytest.mark.parametrize("n", [1, 2, 6])
def test_where_all_is_drawn_all_are_alike(n):
    names = [f"m{at}" for at in range(n)]
    matches = [match(a, b, 0, 10, 0) for a, b in itertools.combinations(names, 2)]
    payoff = Payoff.of(names, matches)
    np.testing.assert_allclose(nash_mixture(payoff.win_rates), 1 / n)
    np.testing.assert_allclose(alpha_rank(payoff.win_rates), 1 / n)
    np.testing.assert_allclose(alpha_rank(payoff.win_rates, alpha=10.0), 1 / n)
    assert {one.elo for one in elo_ratings(payoff)} == {0.0}
    top = spinning_top(payoff)
    assert [len(layer.members) for layer in top.layers] == [n]
    assert (top.transitive, top.cyclic, top.triples) == (1.0, 0.0, 0)


def test_members_that_never_met_are_rated_without_nan():
    payoff = Payoff.of(["a", "b", "c", "d", "e"], [match("a", "b", 9, 0, 1), match("c", "d", 2, 1, 7)])
    top = spinning_top(payoff)
    assert sorted(name for layer in top.layers for name in layer.members) == ["a", "b", "c", "d", "e"]
    assert top.transitive == pytest.approx(1.0)
    figures = [nash_mixture(payoff.win_rates), alpha_rank(payoff.win_rates), alpha_rank(payoff.win_rates, 100.0)]
    assert all(np.isfinite(one).all() and one.sum() == pytest.approx(1) for one in figures)
    assert all(np.isfinite([one.elo, one.low, one.high]).all() for one in elo_ratings(payoff))


def test_two_who_have_not_met_are_as_their_ratings_say():
    payoff = Payoff.of(["a", "b", "c"], [match("a", "b", 75, 0, 25), match("b", "c", 75, 0, 25)])
    rates = known_rates(payoff)
    assert rates[0, 2] == pytest.approx(0.9, abs=0.02)
    assert rates[0, 2] + rates[2, 0] == pytest.approx(1)
    assert rates[0, 1] == 0.75
    assert nash_mixture(rates).tolist() == [1, 0, 0]


def test_alpha_rank_is_open_spiels():
    alpharank = pytest.importorskip("open_spiel.python.egt.alpharank", reason="needs the extra games")
    for seed in range(4):
        drawn = np.random.default_rng(seed).random((6, 6)).round(1)  # some are even
        rates = (drawn + 1 - drawn.T) / 2
        theirs = alpharank.compute([rates], use_inf_alpha=True, inf_alpha_eps=0.01)[2]
        np.testing.assert_allclose(alpha_rank(rates), theirs, atol=1e-8)
        theirs = alpharank.compute([rates], m=20, alpha=1.5)[2]
        np.testing.assert_allclose(alpha_rank(rates, alpha=1.5, population=20), theirs, atol=1e-8)


def test_more_games_leave_less_doubt_and_learners_keep_some():
    few, many = (bayesian_ratings([Result((("a",), ("b",)), (1, 1), games)]) for games in (4, 400))
    assert few["a"].sigma > 2 * many["a"].sigma
    assert few["a"].mu == pytest.approx(25.0)
    learning = bayesian_ratings([Result((("a",), ("b",)), (1, 1), 400)], changing=True)
    assert learning["a"].sigma > many["a"].sigma


def test_games_of_teams_are_rated_as_teams_of_any_number():
    found = bayesian_ratings([Result((("a", "b"), ("c", "d"), ("e", "f")), (1, 2, 3), 20)])
    assert found["a"].mu == pytest.approx(found["b"].mu)
    assert found["a"].mu > found["c"].mu > found["e"].mu
    mates = [Result((("strong", "weak"), ("x", "y")), (1, 2), 5), Result((("weak", "x"), ("y", "z")), (2, 1), 10)]
    found = bayesian_ratings(mates)
    assert found["strong"].mu > found["weak"].mu


def test_wins_and_losses_of_one_match_take_turns():
    kinds = [one.places for one in results_of([match("a", "b", 3, 0, 3)])]
    assert kinds == [(1, 2), (2, 1)] * 3
    assert sum(one.games for one in results_of([match("a", "b", 5, 2, 0)])) == 7


def test_a_curve_begins_with_the_first_match_and_ends_with_todays_rating():
    rng = np.random.default_rng(2)
    matches = [match("a", "b", won := int(rng.integers(5, 9)), 0, 10 - won) for _ in range(120)]
    matches += [match("late", "b", 10, 0, 0) for _ in range(30)]
    curves = rating_curves(["a", "b", "late"], matches, anchor="b", points=50)
    assert len(curves["a"]) == 50
    assert curves["a"][-1].games == 1500
    assert curves["late"][0].games > 1200
    now = {one.member: one for one in elo_ratings(Payoff.of(["a", "b", "late"], matches), "b")}
    assert curves["a"][-1].elo == pytest.approx(now["a"].elo)
    assert curves["a"][0].high - curves["a"][0].low > curves["a"][-1].high - curves["a"][-1].low
    assert len(rating_curves(["a", "b"], matches[:3])["a"]) == 3
    assert rating_curves(["a", "b"], [match("a", "b", 1, 0, 0)], "b")["a"] == []  # one game tells nothing yet
    assert rating_curves([], []) == {}


def test_who_played_before_the_newest_of_very_many_games_is_rated_and_shown_too(monkeypatch):
    monkeypatch.setattr(ratings, "MAX_RATED_GAMES", 100)
    early, late = match("old", "a", 30, 0, 10), [match("a", "b", 40, 0, 20) for _ in range(10)]
    found = {row.member: row for row in Ladder().standings([early, *late]).ladder}
    assert found["old"].mu > found["a"].mu > found["b"].mu
    assert found["old"].games == 40
