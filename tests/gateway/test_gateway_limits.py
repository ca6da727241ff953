"""Rates, quotas and the sample rate, decided without a clock or a socket."""

import numpy as np
import pytest

from sparring.gateway.rate_limits import DAY_S, GIVEN_S, Quotas, Rates, SampleRate
from sparring.wire.ids import asked_for, new_episode


def test_a_bucket_lets_a_burst_through_and_then_its_rate():
    rates = Rates(per_s=2.0, burst=3.0)
    assert [rates.take("a", 0.0) for _ in range(3)] == [0.0] * 3
    assert rates.take("a", 0.0) == pytest.approx(0.5)
    assert rates.take("b", 0.0) == 0.0
    assert rates.take("a", 0.5) == 0.0
    assert rates.take("a", 0.5) > 0.0
    assert [rates.take("a", 100.0) for _ in range(4)][3] > 0.0


def test_no_more_callers_are_remembered_than_stated():
    rates = Rates(per_s=1.0, burst=1.0, callers=10)
    for caller in range(1_000):
        rates.take(caller, 0.0)
    assert len(rates._buckets) == 10


def test_a_day_ends_at_midnight_and_what_was_not_kept_is_given_back():
    quotas = Quotas(steps_per_day=10, bytes_per_day=1_000)
    assert quotas.take("a", 10, 50, DAY_S - 60) == 0.0
    assert quotas.take("a", 1, 50, DAY_S - 60) == 60.0
    quotas.give_back("a", 4, 0)
    assert quotas.take("a", 4, 950, DAY_S - 60) == 0.0
    assert quotas.take("a", 0, 1, DAY_S - 60) == 60.0
    assert quotas.take("b", 10, 1_000, DAY_S - 60) == 0.0
    assert quotas.take("a", 10, 1_000, DAY_S) == 0.0


class Players:
    """People who play 60 steps a second in episodes of about 20 s, and obey the rate heard at each one's start."""

    def __init__(self, rng):
        self.rng, self.open = rng, []

    def second(self, count, rate):
        """(steps, rate under which they were opened) of everything uploaded in one second."""
        while len(self.open) < count:
            episode = new_episode(int(self.rng.integers(1 << 40)))
            self.open.append([int(self.rng.integers(5, 36)), rate, asked_for(episode, rate)])
        sent = [(60, opened) for _, opened, asked in self.open if asked]
        for one in self.open:
            one[0] -= 1
        self.open = [one for one in self.open if one[0] > 0]
        return sent


def test_from_ten_to_ten_thousand_players_the_total_stays_at_the_budget_and_each_is_asked_for_less():
    budget, window = 6_000.0, 10.0
    sample, players, now = SampleRate(budget, window), Players(np.random.default_rng(1)), 0.0
    settled = []
    for count in (10, 100, 1_000, 10_000):
        totals, rates = [], []
        for second in range(120):
            now += 1.0
            rate = sample.rate(now)
            sent = players.second(count, rate)
            for steps, opened in sent:
                sample.kept(steps, opened, now)
            if second >= 60:
                totals.append(sum(steps for steps, _ in sent))
                rates.append(rate)
        settled.append((count, float(np.mean(totals)), float(np.mean(rates))))
    for count, total, _ in settled:
        offered = count * 60
        assert total == pytest.approx(min(budget, offered), rel=0.2), settled
    rates = [rate for _, _, rate in settled]
    assert rates[0] == 1.0
    assert rates[1] > 0.8
    assert rates == sorted(rates, reverse=True)
    assert rates[3] < rates[2] / 5


def test_when_players_leave_the_rate_rises_again():
    sample = SampleRate(100.0, 10.0)
    for second in range(100):
        sample.kept(1_000, 1.0, float(second))
    assert sample.rate(100.0) < 0.2
    assert sample.rate(200.0) == 1.0


def test_a_claimed_rate_that_was_never_given_counts_as_the_lowest_that_was():
    sample = SampleRate(100.0, 10.0)
    sample.kept(50, 1e-300, 0.0)
    assert sample.rate(1.0) == 1.0
    given = []
    for second in range(100):
        sample.kept(1_000, 1.0, float(second))
        given.append(sample.rate(float(second)))
    assert min(given) < 0.1
    sample.kept(1, 1e-300, 1_000.0)  # the others have aged away
    assert sample.played_steps_per_s(1_000.0) == pytest.approx(0.1 / min(given), rel=0.01)
    sample.rate(2 * GIVEN_S)
    sample.rate(3 * GIVEN_S)  # what was given so long ago is not claimed any more
    sample.kept(1, 1e-300, 3 * GIVEN_S)
    assert sample.played_steps_per_s(3 * GIVEN_S) == pytest.approx(0.1, rel=0.01)
