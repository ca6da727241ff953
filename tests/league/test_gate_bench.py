"""`spar bench gate`: the simulation that the stated error rate rests on, in a small and seeded form."""

import argparse

import numpy as np
import pytest
from bench.gate import PEER, Results, kinds, run, simulate, tried, wilson

from sparring.league.gate import ALPHA, SCALE
from sparring.league.sequential_test import ErrorRates, Verdict, judge


def test_few_lineages_that_are_not_better_get_a_champion_and_the_old_rule_crowned_nearly_all():
    said = run(argparse.Namespace(quick=True))
    assert said["passed"]
    cases = {one["name"].partition(":")[0]: one for one in said["cases"]}
    assert len(cases) == len(kinds()) == 21
    for name in ("+0 Elo, no draws", "+0 Elo, 60 % drawn", "+0.0 sd, one seat"):
        even = cases[name]
        assert even["ours"] == even["spread"][1] <= 100 * ALPHA
        assert even["peers"][PEER] > 99
    for name in ("+100 Elo, no draws", "+100 Elo, 60 % drawn", "+1.0 sd, one seat"):
        assert cases[name]["ours"] == 100.0
        assert cases[name]["games_per_try"] < 300
    for name in ("-100 Elo, no draws", "-100 Elo, 60 % drawn", "-1.0 sd, one seat"):
        assert cases[name]["verdicts"]["not better"] + cases[name]["verdicts"]["worse"] == 100.0
        assert cases[name]["games_per_try"] < 200
    assert cases["-20 Elo, no draws"]["peers"][PEER] > 90


def test_lineages_side_by_side_are_judged_as_the_gate_judges_one():
    results = Results.of_pairs(80.0, 0.1)
    rates, rng = ErrorRates(ALPHA), np.random.default_rng(1)
    verdicts, games, answered = tried(results, rates, 5, rng)
    again = np.random.default_rng(1).multinomial(32, results.chances, 5)  # what their first look saw
    for one in np.flatnonzero(games == 64):
        assert judge(np.repeat(results.values, again[one]), rates) == (verdicts[one], answered[one])
    assert (games[~answered] == 2_000).all()


@pytest.mark.parametrize("results", [one for *_, one in kinds()])
def test_simulated_results_have_the_strength_that_is_said(results):
    assert results.chances.sum() == pytest.approx(1.0)
    assert (results.chances >= 0).all()
    assert 0.0 <= results.values.min() <= results.values.max() <= 1.0


def test_one_seat_results_are_differences_in_standard_deviations():
    even, more = Results.of_returns(0.0), Results.of_returns(0.5)
    assert even.chances @ even.values == pytest.approx(0.5)
    assert more.chances @ more.values - 0.5 == pytest.approx(0.5 / SCALE / 2, rel=0.1)


def test_a_lineage_is_over_with_its_first_promotion():
    found = simulate(Results.of_pairs(100.0, 0.0), 50, np.random.default_rng(0))
    assert found.promoted.all()
    assert (found.verdicts == Verdict.BETTER).sum() == 50


def test_the_interval_of_a_share():
    low, high = wilson(np.arange(100) < 5)
    assert (low, high) == (pytest.approx(2.15, abs=0.02), pytest.approx(11.18, abs=0.02))
    assert wilson(np.zeros(10_000, bool))[1] < 0.05
