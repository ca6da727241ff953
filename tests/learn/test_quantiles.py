"""DQN with quantiles: what acts is the mean of what learns, and masks, ends, spans and weights count as without."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError
from sparring.games.catalogue import spec_of
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.algorithms.dqn import outcomes, quantiles_of
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.protocol import Batch
from sparring.learn.topologies import build
from sparring.nets.model_files import make_model
from sparring.nets.numpy_forward import NumpyForward
from sparring.wire.model import Lineage
from sparring.wire.tree import pack, unpack

ALGORITHM = open_algorithm("dqn")
ROWS = 12


def learner_of(seed=0, **settings):
    config = settings_of(ALGORITHM, {"quantiles": 5, "hidden_units": [16], "image_layers": ["flat"], **settings})
    learner = ALGORITHM.begin(spec_of("connect-four"), config, seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # a fresh head says nearly nothing
        for value in (*learner.online.parameters(), *learner.target.parameters()):
            value.add_(torch.randn(value.shape, generator=draw) * 0.3)
    return learner


def drawn_batch(seed=1):
    rng = np.random.default_rng(seed)
    seen = [{"observation/board": rng.integers(0, 2, (ROWS, 2, 6, 7)).astype(np.uint8)} for _ in range(2)]
    legal = rng.random((ROWS, 7)) < 0.5
    legal[:, 3] = True
    return Batch(
        observation=seen[0],
        action=rng.integers(0, 7, ROWS).astype(np.int32),
        reward=rng.normal(size=ROWS).astype(np.float32),
        ending=np.array([RUNNING, TERMINATED, TRUNCATED] * (ROWS // 3), np.uint8),
        next_observation=seen[1],
        next_legal=legal,
        n_steps=rng.integers(1, 4, ROWS).astype(np.int32),
    )


@pytest.mark.parametrize("dueling", [True, False])
def test_the_network_that_acts_has_the_mean_of_what_was_learned_for_each_action(dueling):
    learner, batch = learner_of(dueling=dueling), drawn_batch()
    acted = NumpyForward(learner.network, learner.weights())(batch.observation)["logits"]
    seen = {name: torch.from_numpy(column) for name, column in batch.observation.items()}
    learned = quantiles_of(learner.online(seen), 5).mean(2).detach().numpy()
    assert acted.shape == (ROWS, 7)
    assert acted == pytest.approx(learned, abs=1e-5)
    assert {head.name: head.units for head in learner.network.heads} == {"logits": 7}
    lineage = Lineage(algorithm="dqn", config={}, steps={})
    make_model(spec_of("connect-four"), learner.network, learner.weights(), "greedy", lineage, 0)  # compares with ONNX


@pytest.mark.parametrize("double", [True, False])
def test_goals_are_those_of_a_slow_loop(double):
    learner, batch = learner_of(double=double), drawn_batch()
    chosen, goal = outcomes(learner.online, learner.target, batch, learner.config)

    def quantiles(network, seen, row):
        one = {name: torch.from_numpy(column[row : row + 1]) for name, column in seen.items()}
        return quantiles_of(network(one), 5)[0].detach().numpy()

    for row in range(ROWS):
        own, then = (quantiles(learner.online, seen, row) for seen in (batch.observation, batch.next_observation))
        old = quantiles(learner.target, batch.next_observation, row)
        judge = then if double else old
        best = max(np.flatnonzero(batch.next_legal[row]), key=lambda action: judge[action].mean())
        follows = 0.0 if batch.ending[row] == TERMINATED else learner.config.discount ** batch.n_steps[row]
        assert goal[row].numpy() == pytest.approx(batch.reward[row] + follows * old[best], abs=1e-4)
        assert chosen[row].detach().numpy() == pytest.approx(own[batch.action[row]], abs=1e-5)


def test_priorities_are_the_errors_of_the_mean_and_weights_scale_each_row():
    learner, batch = learner_of(), drawn_batch()
    chosen, goal = outcomes(learner.online, learner.target, batch, learner.config)
    errors = (goal - chosen).mean(1).detach().abs().numpy()
    kept, before = learner.save(), learner.weights()
    assert ALGORITHM.update(learner, batch).priorities == pytest.approx(errors, abs=1e-5)
    plain = ALGORITHM.update(learner_copy(kept), replace(batch, weight=np.ones(ROWS, np.float32))).learner.save()
    assert plain == learner.save()
    still = ALGORITHM.update(learner_copy(kept), replace(batch, weight=np.zeros(ROWS, np.float32))).learner
    assert all((still.weights()[name] == value).all() for name, value in before.items())


def learner_copy(state):
    learner = learner_of(9)
    learner.load(state)
    return learner


def wired(config, *settings):
    quick = ("learning_rate=0.002", "epsilon_steps=1000", "batch_steps=64", "hidden_units=[32]", "quantiles=8")
    wish = TrainRequest("chain_game:chain", "dqn", "sim", None, 0, 6_000, 8, (*quick, *settings))
    return build(plan(wish, replace(config, replay=replace(config.replay, min_steps=200, sampler="prioritised"))), None)


def test_it_learns_the_smallest_game_with_all_of_it_together(config):
    topology = wired(config, "n_steps=3", "dueling=true", "double=true")
    while topology.position < 6_000:
        topology.iterate()
    learner = topology.learner
    played = evaluate("chain_game:chain", NumpyForward(learner.network, learner.weights()), episodes=10, seed=1)
    assert played.mean == pytest.approx(0.7)


def test_a_run_goes_on_as_if_nothing_had_happened(config):
    first, second = wired(config), wired(config)
    while first.position < 1_500:
        first.iterate()
    second.load(unpack(pack(first.save())))
    for _ in range(10):
        first.iterate()
        second.iterate()
    assert pack(first.save()) == pack(second.save())


def test_a_number_of_quantiles_below_nothing_is_refused():
    with pytest.raises(ConfigError, match="quantiles = -1"):
        settings_of(ALGORITHM, {"quantiles": -1})
