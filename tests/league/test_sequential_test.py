"""The test by betting: what it concludes from results, and how often it is wrong."""

import math

import numpy as np
import pytest

from sparring.league.sequential_test import Counts, ErrorRates, Verdict, elo_of, interval, judge

RATES = ErrorRates(alpha=0.05)


def pairs(wins, draws, losses, count, rng):
    """Scores of `count` pairs of games with these chances."""
    return rng.choice([1.0, 0.5, 0.0], p=[wins, draws, losses], size=(count, 2)).mean(axis=1)


@pytest.mark.parametrize(
    ("results", "verdict", "final"),
    [
        ([], Verdict.UNDECIDED, False),
        ([1.0], Verdict.UNDECIDED, False),
        ([1.0] * 10, Verdict.BETTER, True),
        ([0.0] * 10, Verdict.WORSE, True),
        ([1.0, 0.0] * 10, Verdict.UNDECIDED, False),
        ([0.5] * 400, Verdict.NOT_WORSE, True),
        ([0.75, 0.25, 0.25, 0.5] * 20, Verdict.NOT_BETTER, True),
        ([1.0, 0.0] * 2_000, Verdict.NOT_WORSE, True),
        ([0.6] * 40, Verdict.BETTER, True),  # little, but always
    ],
)
def test_what_results_show(results, verdict, final):
    assert judge(np.array(results), RATES) == (verdict, final)


def log_wealth(results, mean):
    return Counts.of(results).log_wealth(mean)


def test_wealth_starts_at_one_and_follows_the_results():
    assert log_wealth(np.zeros(0), 0.5) == pytest.approx(0.0)
    assert log_wealth(np.ones(5), 0.5) > 0 > log_wealth(np.zeros(5), 0.5)
    assert log_wealth(np.zeros(100), 0.5) > -math.inf  # never ruined: a later result can still be seen


@pytest.mark.parametrize(("wins", "draws", "losses"), [(0.5, 0.0, 0.5), (0.2, 0.6, 0.2), (0.45, 0.05, 0.5)])
def test_a_player_who_is_not_better_is_seldom_called_better_although_the_results_are_looked_at_often(
    wins, draws, losses
):
    rng, called = np.random.default_rng(1), 0
    for _ in range(400):
        results = pairs(wins, draws, losses, 150, rng)
        called += any(judge(results[:n], RATES)[0] is Verdict.BETTER for n in range(5, 151, 5))
    assert called / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_all_tries_of_a_lineage_share_one_error_rate():
    assert sum(RATES.of_try(k).alpha for k in range(1, 10_000)) <= RATES.alpha
    rng, lineages = np.random.default_rng(2), 0
    for _ in range(300):
        tries = (judge(pairs(0.5, 0.0, 0.5, 128, rng), RATES.of_try(k))[0] for k in range(1, 21))
        lineages += any(verdict is Verdict.BETTER for verdict in tries)
    assert lineages / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_a_better_player_is_found():
    rng = np.random.default_rng(3)
    found = [judge(pairs(0.6, 0.0, 0.4, 500, rng), RATES)[0] for _ in range(50)]
    assert found.count(Verdict.BETTER) >= 49


def test_the_interval_holds_the_truth_at_every_moment_at_once():
    rng, missed = np.random.default_rng(4), 0
    for _ in range(200):
        results = pairs(0.55, 0.1, 0.35, 128, rng)
        ends = [interval(results[:n], 0.05) for n in (8, 32, 128)]
        missed += not all(low <= 0.6 <= high for low, high in ends)
    assert missed / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert ends[-1][1] - ends[-1][0] < ends[0][1] - ends[0][0]


def test_tests_side_by_side_are_judged_as_each_alone():
    rng, values = np.random.default_rng(5), np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    counts = rng.multinomial(60, [0.1, 0.2, 0.2, 0.3, 0.2], size=(3, 20))
    verdicts, final = Counts(values, counts).judged(RATES)
    assert verdicts.shape == final.shape == (3, 20)
    assert len(set(verdicts.ravel())) > 1
    for place in np.ndindex(3, 20):
        assert judge(np.repeat(values, counts[place]), RATES) == (verdicts[place], final[place])


def test_elo():
    assert elo_of(0.5) == 0.0
    assert elo_of(10 / 11) == pytest.approx(400.0)
    assert elo_of(0.25) == pytest.approx(-elo_of(0.75))
    assert -1_300 < elo_of(0.0) < -1_100 < 1_100 < elo_of(1.0) < 1_300
