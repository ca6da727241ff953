"""Running statistics of inputs and returns: right, shared, saved, and the same in every form of a network."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from sparring.errors import ModelDamaged
from sparring.games.protocol import RUNNING, TERMINATED
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.algorithms.learner import LOG_STD_FIRST
from sparring.learn.algorithms.normalisation import InputStatistics, RewardScale
from sparring.learn.algorithms.ppo import Ppo, PpoConfig
from sparring.learn.protocol import Batch
from sparring.nets.distributions import Gaussian
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.onnx_graph import OnnxForward, to_onnx
from sparring.nets.torch_network import Network, TorchForward, default_network
from sparring.wire.network import Dense, Head, Input, NetworkSpec

SEEN = Input("observation/x", (3,), normalise=True)
SPEC = NetworkSpec((SEEN,), (Head("logits", 2), Head("value", 1)), (Dense(8),))


def rows(n: int, seed: int = 0):
    """Entries of very unequal size, and a flag."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.normal(500, 100, n), rng.normal(0, 1e-3, n), rng.integers(0, 2, n)], 1).astype(np.float32)


def test_statistics_are_those_of_all_rows_and_a_flag_stays_as_it_is() -> None:
    nets = [Network(SPEC, seed) for seed in (1, 2)]
    statistics, seen = InputStatistics(*nets), rows(3000)
    for part in np.split(seen, [10, 700]):
        statistics.learn({SEEN.name: part})
    statistics.apply()
    for net in nets:
        weights = net.weights()
        assert np.allclose(weights["inputs/0/mean"], [*seen[:, :2].mean(axis=0), 0], rtol=1e-3, atol=1e-6)
        assert np.allclose(weights["inputs/0/deviation"], [*seen[:, :2].std(axis=0), 1], rtol=2e-2)


def test_padding_is_not_counted_and_statistics_come_back_from_a_checkpoint() -> None:
    padded, mask = rows(40).reshape(4, 10, 3), np.ones((4, 10), bool)
    mask[2:, 5:] = False
    true = padded[mask].copy()
    padded[~mask] = 1e9
    net, other = Network(SPEC, 1), Network(SPEC, 1)
    first, second = InputStatistics(net), InputStatistics(other)
    first.learn({SEEN.name: padded}, mask)
    first.apply()
    assert np.allclose(net.weights()["inputs/0/mean"][:2], true[:, :2].mean(axis=0), rtol=1e-4, atol=1e-6)
    second.load(first.save())
    for one in (first, second):
        one.learn({SEEN.name: rows(20, 5)})
        one.apply()
    assert all(np.array_equal(value, other.weights()[name]) for name, value in net.weights().items())


def test_every_form_of_a_network_normalises_alike_and_no_gradient_moves_the_statistics() -> None:
    net, seen = Network(SPEC, 3), rows(200)
    assert not [name for name, _ in net.named_parameters() if name.startswith("inputs/")]
    statistics = InputStatistics(net)
    statistics.learn({SEEN.name: seen})
    statistics.apply()
    seen[0] = [1e6, -1.0, 1.0]  # far beyond the limit
    weights = net.weights()
    wanted = NumpyForward(SPEC, weights)({SEEN.name: seen})
    for forward in (TorchForward(Network.with_weights(SPEC, weights)), OnnxForward(SPEC, to_onnx(SPEC, weights))):
        given = forward({SEEN.name: seen})
        assert all(np.allclose(given[name], column, atol=1e-5) for name, column in wanted.items())
    limit = NumpyForward(SPEC, weights)({SEEN.name: np.array([[1e7, -2.0, 1.0]], np.float32)})
    assert np.allclose(limit["logits"][0], wanted["logits"][0], atol=1e-6)
    weights["inputs/0/deviation"] = np.zeros(3, np.float32)
    with pytest.raises(ModelDamaged, match="inputs/0/deviation is not above 0"):
        NumpyForward(SPEC, weights)


def test_a_network_that_does_not_normalise_is_written_as_before() -> None:
    plain = msgspec.json.encode(Input("observation/x", (3,)))
    assert plain == (
        b'{"name":"observation/x","shape":[3],"shift":0.0,"scale":1.0,"one_hot":0,"dtype":"float32","image":false}'
    )
    assert msgspec.json.decode(msgspec.json.encode(SEEN), type=Input) == SEEN


def test_the_default_network_normalises_floats_that_are_not_known_to_be_small() -> None:
    leaves = (
        Leaf(name="observation/free", kind="vector", shape=(2,)),
        Leaf(name="observation/wide", kind="vector", shape=(2,), low=-1.2, high=0.6),
        Leaf(name="observation/unit", kind="vector", shape=(2,), low=0.0, high=1.0),
        Leaf(name="observation/screen", kind="image", shape=(1, 8, 8), dtype="uint8"),
    )
    seat = SeatSpec(name="player", observation=leaves, action=discrete(2), reward_bounds=(-1, 1))
    assert [leaf.normalise for leaf in default_network(seat, normalise=True).inputs] == [True, True, False, False]
    assert not any(leaf.normalise for leaf in default_network(seat).inputs)


def trajectories(reward, ending) -> Batch:
    shape = reward.shape
    seen = {SEEN.name: np.random.default_rng(1).normal(3, 5, (*shape, 3)).astype(np.float32)}
    ones = np.zeros(shape, np.float32)
    return Batch(
        observation=seen,
        action=np.zeros(shape, np.int32),
        reward=reward.astype(np.float32),
        ending=ending,
        next_observation={SEEN.name: seen[SEEN.name][-1]},
        behaviour_logp=ones - 0.7,
        value=ones,
        truncation_value=ones,
    )


def test_rewards_are_divided_by_the_deviation_of_discounted_returns() -> None:
    rng = np.random.default_rng(0)
    reward, ending = rng.normal(100, 900, (50, 4)), np.full((50, 4), RUNNING, np.uint8)
    ending[24], ending[49, 0] = TERMINATED, TERMINATED
    scale, returns, running = RewardScale(0.9), [], np.zeros(4)
    for t in range(50):
        running = 0.9 * running + reward[t]
        returns.append(running)
        running = np.where(ending[t] == RUNNING, running, 0)
    first = scale.scaled(trajectories(reward[:20], ending[:20]))
    second = scale.scaled(trajectories(reward[20:], ending[20:]))
    assert np.allclose(second, np.clip(reward[20:] / np.std(returns), -10, 10), rtol=1e-3)
    assert scale.factor == pytest.approx(1 / np.std(returns), rel=1e-3)
    assert np.allclose(first, np.clip(reward[:20] / np.std(returns[:20]), -10, 10), rtol=1e-3)
    nothing = RewardScale(0.9)
    assert not nothing.scaled(trajectories(np.zeros((5, 2)), np.full((5, 2), RUNNING, np.uint8))).any()


def test_ppo_learns_the_statistics_and_its_actors_get_them_with_the_weights() -> None:
    leaf = Leaf(name=SEEN.name, kind="vector", shape=(3,))
    seat = SeatSpec(name="player", observation=(leaf,), action=discrete(2), reward_bounds=(-1, 1))
    game = GameSpec(id="aim", turns="simultaneous", seats=(seat,), max_ticks=10)
    learner = Ppo().begin(game, PpoConfig(), 0)
    batch = trajectories(np.ones((8, 4)), np.full((8, 4), RUNNING, np.uint8))
    Ppo().update(learner, batch)
    weights, seen = learner.weights(), batch.observation[SEEN.name].reshape(-1, 3)
    assert np.allclose(weights["inputs/0/mean"], seen.mean(axis=0), atol=1e-4)
    assert np.allclose(weights["inputs/0/deviation"], seen.std(axis=0), atol=1e-3)
    twin = Ppo().begin(game, PpoConfig(), 1)
    twin.load(learner.save())
    for one in (learner, twin):
        Ppo().update(one, batch)
    assert all(np.array_equal(value, twin.weights()[name]) for name, value in learner.weights().items())


@pytest.mark.parametrize("algo", ["ppo", "impala", "a3c"])
def test_a_box_has_one_deviation_for_all_states_which_is_learned(algo) -> None:
    algorithm = open_algorithm(algo)
    leaf, action = (
        Leaf(name=SEEN.name, kind="vector", shape=(3,)),
        Leaf(name="action", kind="box", shape=(2,), low=-1.0, high=1.0),
    )
    seat = SeatSpec(name="player", observation=(leaf,), action=action, reward_bounds=(-1, 1))
    game = GameSpec(id="steer", turns="simultaneous", seats=(seat,), max_ticks=10)
    learner = algorithm.begin(game, settings_of(algorithm, {}), 0)
    assert (learner.weights()["log_std/bias"] == np.float32(LOG_STD_FIRST)).all()
    batch = trajectories(np.random.default_rng(2).normal(0, 1, (8, 4)), np.full((8, 4), RUNNING, np.uint8))
    done = np.random.default_rng(3).uniform(-0.9, 0.9, (8, 4, 2)).astype(np.float32)
    algorithm.update(learner, replace(batch, action=done))
    after = learner.weights()
    assert not after["log_std/weight"].any()
    assert (after["log_std/bias"] != np.float32(LOG_STD_FIRST)).all()


def test_the_entropy_of_a_squashed_gaussian_is_that_of_its_action() -> None:
    chosen = Gaussian((-2.0, 2.0), (1,))
    draw = torch.Generator().manual_seed(0)
    for mean, log_std in ((0.0, 0.0), (0.7, -1.0), (-1.0, 0.5)):
        out = {"mean": torch.full((200_000, 1), mean), "log_std": torch.full((200_000, 1), log_std)}
        _, logp = chosen.draw(out, draw)
        assert chosen.entropy(out, None)[0].item() == pytest.approx(-logp.mean().item(), abs=0.02)
    wide = {"mean": torch.zeros(1, 1), "log_std": torch.full((1, 1), 2.0)}
    assert chosen.entropy(wide, None).item() < math.log(4.0)
