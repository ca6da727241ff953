"""Torch and NumPy run one network alike, whatever its shape."""

import numpy as np
import pytest
import torch
from drawn_networks import draw_network, draw_observation

from sparring.errors import ConfigError, ModelDamaged
from sparring.games.spec import Leaf, SeatSpec, discrete, vector
from sparring.learn.forward import Forward
from sparring.learn.layout import parameters
from sparring.learn.networks import Network, default_network
from sparring.wire.network import Conv, Dense, Head, Input, NetworkSpec


def close(a, b):
    return np.abs(a - b).max(initial=0) <= 1e-5 * max(1.0, np.abs(b).max(initial=0))


@pytest.mark.parametrize("seed", range(40))
def test_torch_and_numpy_give_the_same_numbers(seed):
    rng = np.random.default_rng(seed)
    spec = draw_network(rng)
    network = Network(spec, seed)
    with torch.no_grad():  # heads begin near zero; larger ones show differences
        for value in network.parameters():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
    forward = Forward(spec, network.weights())
    for n in (0, 1, 3, 65):
        observation = draw_observation(spec, n, rng)
        with torch.no_grad():
            theirs = network({name: torch.from_numpy(array) for name, array in observation.items()})
        ours = forward(observation)
        assert set(ours) == set(theirs) == {head.name for head in spec.heads}
        for name, array in ours.items():
            assert array.dtype == np.float32
            assert array.shape == theirs[name].shape
            assert close(array, theirs[name].numpy()), name


def test_equal_seeds_give_equal_parameters_and_others_do_not():
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2), Head("value", 1)), (Dense(8),))
    first, second, other = (Network(spec, seed).weights() for seed in (1, 1, 2))
    assert all((first[name] == second[name]).all() for name in first)
    assert (first["trunk/0/weight"] != other["trunk/0/weight"]).any()


def test_weights_are_a_copy_and_come_back_whole():
    spec = NetworkSpec(
        (Input("observation/x", (3, 8, 8), image=True),), (Head("logits", 2),), (Dense(4),), (Conv(5, 3),)
    )
    network, other = Network(spec, 1), Network(spec, 2)
    taken = network.weights()
    with torch.no_grad():
        for value in network.parameters():
            value.zero_()
    assert taken["image/0/weight"].any()
    other.set_weights(taken)
    assert all((value == taken[name]).all() for name, value in other.weights().items())


def test_initial_layers_are_orthogonal_with_the_usual_gains():
    spec = NetworkSpec((Input("observation/x", (16,)),), (Head("logits", 4), Head("value", 1)), (Dense(16),))
    weights = Network(spec, 3).weights()
    hidden = weights["trunk/0/weight"]
    assert np.allclose(hidden @ hidden.T, 2 * np.eye(16), atol=1e-4)
    assert np.allclose(np.linalg.norm(weights["logits/weight"], axis=1), 0.01, atol=1e-5)
    assert np.allclose(np.linalg.norm(weights["value/weight"], axis=1), 1.0, atol=1e-5)
    assert not weights["trunk/0/bias"].any()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (
            lambda w: w.pop("value/bias"),
            "weights: 'value/bias' is missing or not of this network. Use its own weights.",
        ),
        (
            lambda w: w.update({"value/bias": np.zeros(2, np.float32)}),
            "weights: value/bias is float32 (2,), not float32 (1,). Use its own weights.",
        ),
        (
            lambda w: w.update({"value/bias": np.full(1, np.nan, np.float32)}),
            "weights: value/bias holds NaN or infinity. Go back to an earlier model.",
        ),
    ],
)
def test_weights_of_another_shape_or_without_finite_numbers_are_refused(spoil, text):
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2), Head("value", 1)), (Dense(8),))
    weights = Network(spec, 0).weights()
    spoil(weights)
    for take in (lambda: Forward(spec, weights), lambda: Network(spec, 0).set_weights(weights)):
        with pytest.raises(ModelDamaged) as caught:
            take()
        assert str(caught.value) == text


@pytest.mark.parametrize(
    "spec",
    [
        NetworkSpec((), (Head("logits", 2),)),
        NetworkSpec((Input("observation/x", (4,)),), ()),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 0),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2), Head("logits", 2))),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),), (Dense(0),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),), (Conv(3, 3),)),
        NetworkSpec((Input("observation/x", (1 << 40,)),), (Head("logits", 2),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),), (Dense(1),) * 300),
        NetworkSpec((Input("observation/x", (2, 4, 4), image=True),), (Head("logits", 2),), (), (Conv(3, 8),)),
        NetworkSpec((Input("observation/x", (4, 4), image=True),), (Head("logits", 2),), (), (Dense(3), Conv(3, 2))),
        NetworkSpec((Input("observation/x", (4,), scale=float("inf")),), (Head("logits", 2),)),
        NetworkSpec((Input("observation/x", (4,), dtype="object"),), (Head("logits", 2),)),
        NetworkSpec((Input("a", (1, 4, 4), image=True), Input("b", (1, 5, 4), image=True)), (Head("logits", 2),)),
    ],
)
def test_a_spec_that_cannot_be_is_refused_before_anything_is_allocated(spec):
    with pytest.raises(ConfigError):
        parameters(spec)


def test_a_missing_leaf_is_named():
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),))
    with pytest.raises(ConfigError, match="no observation leaf 'observation/x'"):
        Forward(spec, Network(spec, 0).weights())({"observation/y": np.zeros((1, 4), np.float32)})


def seat(*leaves, action=None):
    return SeatSpec(name="a", observation=leaves, action=action or discrete(3), reward_bounds=(0.0, 1.0))


def test_the_default_network_suits_what_a_seat_sees():
    board = Leaf(name="observation/screen", kind="image", shape=(84, 84), dtype="uint8")
    speed = vector("observation/speed", 2, -100.0, 300.0)
    angle = vector("observation/angle", 2, -4.8, 4.8)
    card = Leaf(name="observation/card", kind="multi-discrete", shape=(2,), dtype="int8", choices=(3, 5))
    spec = default_network(seat(speed, board, angle, card), hidden=(32,), frame_stack=4)
    by_name = {leaf.name: leaf for leaf in spec.inputs}
    assert by_name["observation/screen"] == Input(
        "observation/screen", (4, 84, 84), 0.0, 1 / 255, dtype="uint8", image=True
    )
    assert by_name["observation/speed"] == Input("observation/speed", (4, 2), 100.0, 1 / 200)
    assert by_name["observation/angle"] == Input("observation/angle", (4, 2))
    assert by_name["observation/card"] == Input("observation/card", (4, 2), one_hot=5, dtype="int8")
    assert spec.image == (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1))
    assert spec.heads == (Head("logits", 3), Head("value", 1))
    assert parameters(spec)["trunk/0/weight"] == (32, 64 * 7 * 7 + 8 + 8 + 40)


def test_a_continuous_action_gets_a_mean_and_a_log_std():
    action = Leaf(name="action", kind="box", shape=(2,), low=-1.0, high=1.0)
    spec = default_network(seat(vector("observation/x", 3), action=action))
    assert spec.heads == (Head("mean", 2), Head("log_std", 2), Head("value", 1))
    assert spec.image == ()


def test_frames_are_stacked_along_channels_or_a_new_axis():
    picture = Leaf(name="observation/p", kind="image", shape=(3, 6, 7))
    assert picture.stacked(1) == (3, 6, 7)
    assert picture.stacked(4) == (12, 6, 7)
    assert vector("observation/x", 5).stacked(4) == (4, 5)
    assert discrete(3).stacked(2) == (2,)
