"""Magnetic mirror descent: the step by its equation, and play that is hard to exploit where information is hidden."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparring.config import Config
from sparring.errors import ConfigError
from sparring.games.catalogue import spec_of
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.algorithms.mmd import Mmd, MmdConfig, goals, mirror_step, views_of
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.protocol import published_weights
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward

KUHN = "spiel:kuhn_poker"


def topology(game=KUHN, steps=4_000, seed=0, where=None, **settings):
    texts = tuple(f"{key}={value}" for key, value in settings.items())
    wish = TrainRequest(game, "mmd", topology=where, seed=seed, steps=steps, envs=16, settings=texts)
    return build(plan(wish, Config()), None)


def test_the_step_is_that_of_the_equation():
    rng = np.random.default_rng(0)
    pi, q = rng.dirichlet(np.ones(4), 5), rng.normal(0, 1, (5, 4))
    alpha, eta = 0.2, 0.7
    # the largest of <π', Q> − α KL(π' ‖ uniform) − KL(π' ‖ π) / η has log π' = (log π + ηQ) / (1 + αη) + constant
    expected = (pi * np.exp(eta * q)) ** (1 / (1 + alpha * eta))
    expected /= expected.sum(1, keepdims=True)
    legal = torch.ones(5, 4, dtype=torch.bool)
    found = mirror_step(torch.from_numpy(np.log(pi)), torch.from_numpy(q), legal, alpha, eta)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


def test_without_gain_the_magnet_draws_the_policy_to_uniform():
    legal = torch.tensor([[True, True, True, False]])
    logps = torch.log(torch.tensor([[0.98, 0.01, 0.01, 1e-30]]))
    for _ in range(400):
        logps = torch.log(mirror_step(logps, torch.zeros(1, 4), legal, 0.1, 0.5).clamp(min=1e-30))
    np.testing.assert_allclose(logps.exp().numpy(), [[1 / 3, 1 / 3, 1 / 3, 0.0]], atol=1e-6)


def test_the_fixed_point_is_the_softmax_of_gain_over_magnet():
    q, legal = torch.tensor([[1.0, 0.5, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    logps = torch.zeros(1, 3).log_softmax(-1)
    for _ in range(2000):
        logps = mirror_step(logps, q, legal, 0.25, 0.3).log()
    np.testing.assert_allclose(logps.exp().numpy(), torch.softmax(q / 0.25, -1).numpy(), atol=1e-5)


def test_what_q_should_have_been_is_the_return_where_it_knows_nothing():
    running = topology(rollout_ticks=16, trace_decay=1.0, normalise_rewards="false")
    learner = running.learner
    for value in learner.critic.parameters():
        value.data.zero_()
    batch = running.actors.take_all().batch
    found = goals(learner, batch, views_of(learner, batch)).numpy()
    expected = np.zeros(batch.reward.shape, np.float32)
    for stream in range(batch.reward.shape[1]):
        rest = 0.0
        for t in reversed(range(batch.reward.shape[0])):
            if batch.mask is None or batch.mask[t, stream]:
                rest = batch.reward[t, stream] + (rest if batch.ending[t, stream] == 0 else 0.0)
                expected[t, stream] = rest
    true = np.ones(expected.shape, bool) if batch.mask is None else batch.mask
    np.testing.assert_allclose(found, expected[true], atol=1e-6)
    running.close()


def test_it_meets_itself_alone_unless_a_user_says_otherwise():
    wish = TrainRequest(KUHN, "mmd")
    assert plan(wish, Config()).opponents == 0
    said = Config().layered({"train.opponents": 3}, "the test", above=True)
    assert plan(wish, said).opponents == 3
    assert plan(TrainRequest(KUHN, "ppo"), Config()).opponents == Config().train.opponents


def test_the_magnet_falls_over_the_run_by_equal_shares():
    algorithm = open_algorithm("mmd")
    learner = algorithm.begin(spec_of(KUHN), replace(MmdConfig(), magnet_steps=100), 0)
    pulls = []
    for learner.steps in (0, 50, 100, 500):
        pulls.append(learner.magnet)
    np.testing.assert_allclose(
        pulls, [0.3, (0.3 * learner.config.magnet_last) ** 0.5, *[learner.config.magnet_last] * 2]
    )


def test_models_get_the_average_and_actors_the_newest_weights():
    running = topology(average_updates=50)
    while running.position < 4_000:
        running.iterate()
    acting, published = running.learner.weights(), published_weights(running.learner)
    assert any(not np.array_equal(acting[name], published[name]) for name in acting)
    other = topology(average_updates=50)
    other.learner.load(running.learner.save())
    again = published_weights(other.learner)
    assert all(np.array_equal(again[name], published[name]) for name in again)
    running.close()
    other.close()


@pytest.mark.parametrize("where", ["single", "sync"])
def test_a_share_of_moves_is_drawn_by_chance(where, monkeypatch):
    played, update = [], Mmd.update

    def noted(self, learner, batch):
        played.append(batch.action[batch.mask])
        return update(self, learner, batch)

    monkeypatch.setattr(Mmd, "update", noted)
    running = topology(where=where, random_moves=0.5)
    weights = running.learner.policy.weights()
    weights["logits/bias"] = np.array([20.0, 0.0], np.float32)  # it would always pass
    running.learner.policy.set_weights(weights)
    while len(played) < 2:  # the first was played before
        running.iterate()
    running.close()
    assert 0.15 < played[1].mean() < 0.35  # half of the moves are one of two


@pytest.mark.parametrize(
    "wrong",
    [
        {"magnet_last": 0.0},
        {"magnet_last": 1.0},
        {"step_size": 0.0},
        {"random_moves": 1.0},
        {"random_moves": -0.5},
        {"minibatch_steps": 0},
        {"policy_epochs": 0},
        {"average_updates": 0},
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(ConfigError, match=rf"^\[mmd\]: .*{name} = {value:g}[,.]"):
        settings_of(open_algorithm("mmd"), wrong)


@pytest.mark.slow
def test_kuhn_poker_becomes_hard_to_exploit():
    import pyspiel
    from open_spiel.python import policy
    from open_spiel.python.algorithms import exploitability

    running = topology(steps=600_000, rollout_ticks=64, average_updates=150, magnet_last=0.1)
    game = pyspiel.load_game("kuhn_poker")

    def exploited():
        forward = NumpyForward(running.learner.network, published_weights(running.learner))

        def chances(state):
            legal = state.legal_actions()
            logits = forward({"observation/state": np.array([state.information_state_tensor()], np.float32)})["logits"]
            shares = np.exp(logits[0][legal] - logits[0][legal].max())
            return dict(zip(legal, shares / shares.sum(), strict=True))

        return exploitability.exploitability(game, policy.tabular_policy_from_callable(game, chances))

    before = exploited()
    while running.position < 600_000:
        running.iterate()
    running.close()
    assert before > 0.3
    assert exploited() < 0.15
