"""Each operator against a slow loop that reads like its equation."""

import numpy as np
import pytest
import torch

from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.learn.algorithms.returns import (
    Truncation,
    discounted_returns,
    explained_variance,
    gae,
    huber,
    next_values,
    normalised,
    quantile_huber,
    rescaled,
    unscaled,
    vtrace,
)


def trajectories(seed, time=17, batch=5):
    rng = np.random.default_rng(seed)
    length = rng.integers(1, time + 1, batch)
    mask = np.arange(time)[:, None] < length
    ending = rng.choice([RUNNING, TERMINATED, TRUNCATED], (time, batch), p=[0.8, 0.1, 0.1]).astype(np.uint8) * mask
    numbers = rng.normal(size=(4, time, batch)).astype(np.float32) * mask
    reward, value, cut, _ = numbers
    bootstrap = rng.normal(size=batch).astype(np.float32)
    return reward, value, cut, ending, bootstrap, mask, length


def slow_next_value(t, b, value, cut, ending, bootstrap, length):
    if ending[t, b] == TERMINATED:
        return 0.0
    if ending[t, b] == TRUNCATED:
        return cut[t, b]
    return bootstrap[b] if t == length[b] - 1 else value[t + 1, b]


@pytest.mark.parametrize("seed", range(20))
def test_advantages_are_those_of_a_slow_loop(seed):
    reward, value, cut, ending, bootstrap, mask, length = trajectories(seed)
    following = next_values(value, ending, bootstrap, cut, mask)
    fast = gae(reward, value, following, ending, 0.97, 0.9)
    for b in range(len(bootstrap)):
        for t in range(length[b]):
            slow, weight = 0.0, 1.0
            for k in range(t, length[b]):
                after = slow_next_value(k, b, value, cut, ending, bootstrap, length)
                slow += weight * (reward[k, b] + 0.97 * after - value[k, b])
                weight *= 0.97 * 0.9
                if ending[k, b] != RUNNING:
                    break
            assert fast[t, b] == pytest.approx(slow, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_returns_are_those_of_a_slow_loop(seed):
    reward, value, cut, ending, bootstrap, mask, length = trajectories(seed)
    following = next_values(value, ending, bootstrap, cut, mask)
    fast = discounted_returns(reward, following, ending, 0.97, mask)
    for b in range(len(bootstrap)):
        for t in range(length[b]):
            slow, weight = 0.0, 1.0
            for k in range(t, length[b]):
                slow += weight * reward[k, b]
                weight *= 0.97
                if ending[k, b] != RUNNING or k == length[b] - 1:
                    slow += weight * slow_next_value(k, b, value, cut, ending, bootstrap, length)
                    break
            assert fast[t, b] == pytest.approx(slow, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_vtrace_is_that_of_a_slow_loop(seed):
    reward, value, cut, ending, bootstrap, mask, length = trajectories(seed)
    following = next_values(value, ending, bootstrap, cut, mask)
    ratio = np.exp(np.random.default_rng(seed).normal(size=reward.shape)).astype(np.float32)
    goal, advantage = vtrace(reward, value, following, ending, ratio, 0.97, Truncation(1.5, 0.8, 0.9))
    for b in range(len(bootstrap)):

        def slow_goal(s, b=b):
            total, weight = value[s, b], 1.0
            for t in range(s, length[b]):
                after = slow_next_value(t, b, value, cut, ending, bootstrap, length)
                total += weight * min(1.5, ratio[t, b]) * (reward[t, b] + 0.97 * after - value[t, b])
                weight *= 0.97 * 0.9 * min(0.8, ratio[t, b])
                if ending[t, b] != RUNNING:
                    break
            return total

        for s in range(length[b]):
            goes_on = ending[s, b] == RUNNING and s < length[b] - 1
            after = slow_goal(s + 1) if goes_on else slow_next_value(s, b, value, cut, ending, bootstrap, length)
            assert goal[s, b] == pytest.approx(slow_goal(s), abs=1e-4)
            slow = min(1.5, ratio[s, b]) * (reward[s, b] + 0.97 * after - value[s, b])
            assert advantage[s, b] == pytest.approx(slow, abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_vtrace_of_ones_own_play_is_the_n_step_return(seed):
    reward, value, cut, ending, bootstrap, mask, _ = trajectories(seed)
    following = next_values(value, ending, bootstrap, cut, mask)
    goal, advantage = vtrace(reward, value, following, ending, np.ones_like(reward), 0.97, Truncation())
    returns = discounted_returns(reward, following, ending, 0.97, mask)
    assert goal[mask] == pytest.approx(returns[mask], abs=1e-4)
    assert advantage[mask] == pytest.approx((returns - value)[mask], abs=1e-4)


def test_vtrace_learns_nothing_from_what_the_policy_would_never_do():
    reward, value, cut, ending, bootstrap, mask, _ = trajectories(0)
    following = next_values(value, ending, bootstrap, cut, mask)
    goal, advantage = vtrace(reward, value, following, ending, np.zeros_like(reward), 0.97, Truncation())
    assert (goal == value).all()
    assert (advantage == 0).all()


def test_returns_without_padding_bootstrap_at_the_last_step():
    one = np.ones((3, 1), np.float32)
    running = np.zeros((3, 1), np.uint8)
    following = next_values(one, running, np.array([8.0], np.float32), None, None)
    assert discounted_returns(one, following, running, 0.5)[:, 0].tolist() == [2.75, 3.5, 5.0]


def test_a_cut_episode_goes_on_with_its_value_and_an_ended_one_does_not():
    value = np.zeros((1, 3), np.float32)
    ending = np.array([[RUNNING, TERMINATED, TRUNCATED]], np.uint8)
    following = next_values(value, ending, np.full(3, 5.0, np.float32), np.full((1, 3), 7.0, np.float32), None)
    assert following.tolist() == [[5.0, 0.0, 7.0]]


def test_huber_is_a_parabola_and_then_a_line():
    errors = torch.linspace(-4, 4, 33)
    expected = [0.5 * e * e if abs(e) <= 1.5 else 1.5 * (abs(e) - 0.75) for e in errors.tolist()]
    assert huber(errors, 1.5).tolist() == pytest.approx(expected)
    assert torch.allclose(huber(errors), torch.nn.functional.smooth_l1_loss(errors, torch.zeros(33), reduction="none"))


def test_explained_variance_is_one_when_perfect_and_zero_for_a_constant():
    target = np.arange(10.0)
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.zeros(10), target) == 0.0
    assert explained_variance(np.zeros(10), np.ones(10)) == 0.0


def test_normalised_advantages_have_mean_zero_and_deviation_one():
    shifted = normalised(torch.tensor([3.0, 5.0, 7.0]))
    assert shifted.mean().item() == pytest.approx(0, abs=1e-6)
    assert shifted.std(correction=0).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("threshold", [1.0, 3.0])
def test_the_loss_of_quantiles_is_that_of_a_slow_loop(threshold):
    rng = np.random.default_rng(2)
    predicted, target = rng.normal(size=(6, 5)) * 3, rng.normal(size=(6, 4)) * 3
    fast = quantile_huber(torch.tensor(predicted), torch.tensor(target), threshold)
    for row in range(6):
        slow = 0.0
        for i, at in enumerate(predicted[row]):
            share = (i + 0.5) / 5
            for goal in target[row]:
                error = goal - at
                size = abs(error)
                cost = 0.5 * size**2 if size <= threshold else threshold * (size - 0.5 * threshold)
                slow += abs(share - (error < 0)) * cost / threshold / 4
        assert fast[row].item() == pytest.approx(slow)


def test_the_loss_of_quantiles_is_least_at_the_quantiles():
    draws = torch.sort(torch.from_numpy(np.random.default_rng(3).exponential(size=(1, 4001)))).values
    at = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(4000):
        (gradient,) = torch.autograd.grad(quantile_huber(at, draws, 0.01).sum(), at)
        at = (at - 0.02 * gradient).detach().requires_grad_()
    shares = [0.125, 0.375, 0.625, 0.875]
    assert at.detach()[0].tolist() == pytest.approx([-np.log(1 - share) for share in shares], abs=0.08)


@pytest.mark.parametrize("slope", [1e-3, 0.1])
def test_rescaling_is_undone_by_its_inverse(slope):
    x = torch.cat([torch.linspace(-1e4, 1e4, 2001, dtype=torch.float64), torch.tensor([1e-9, 0.0, -0.3, 7.5])])
    slow = [np.sign(v) * (np.sqrt(abs(v) + 1) - 1) + slope * v for v in x.tolist()]
    assert rescaled(x, slope).tolist() == pytest.approx(slow, abs=1e-9)
    assert torch.allclose(unscaled(rescaled(x, slope), slope), x, atol=1e-9, rtol=1e-9)
    small = torch.linspace(-300, 300, 601)
    assert torch.allclose(unscaled(rescaled(small, slope), slope), small, atol=1e-4, rtol=1e-5)
