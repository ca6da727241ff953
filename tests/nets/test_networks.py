"""Torch and NumPy run one network alike, whatever its shape and however many steps it remembers."""

import numpy as np
import pytest
import torch

from random_networks import draw_network, draw_observation
from sparring.errors import ConfigError, ModelDamaged
from sparring.games.spec import Leaf, SeatSpec, discrete, vector
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.shapes import multiplications, parameters, state_width
from sparring.nets.torch_network import Network, default_network
from sparring.wire.network import Conv, Dense, Entities, Gru, Head, Input, Lstm, NetworkSpec, Pool, Residual


def close(a, b):
    return np.abs(a - b).max(initial=0) <= 1e-5 * max(1.0, np.abs(b).max(initial=0))


def stirred(spec, seed):
    """A network whose heads and blocks are far from their first, which are near zero and hide differences."""
    network = Network(spec, seed)
    with torch.no_grad():
        for value in network.parameters():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
        for value in network.buffers():  # means and deviations of inputs
            value.add_(torch.rand(value.shape, generator=torch.Generator().manual_seed(seed)))
    return network


def tensors(columns):
    return {name: torch.from_numpy(array) for name, array in columns.items()}


@pytest.mark.parametrize("seed", range(60))
def test_torch_and_numpy_give_the_same_numbers(seed):
    rng = np.random.default_rng(seed)
    spec = draw_network(rng)
    network = stirred(spec, seed)
    forward = NumpyForward(spec, network.weights())
    names = {head.name for head in spec.heads} | ({"state"} if spec.memory else set())
    for n in (0, 1, 3, 65):
        observation = draw_observation(spec, n, rng)
        state = None if rng.random() < 0.3 else rng.normal(0, 0.5, (n, state_width(spec))).astype(np.float32)
        with torch.no_grad():
            theirs = network(tensors(observation), None if state is None else torch.from_numpy(state))
        ours = forward(observation, state)
        assert set(ours) == set(theirs) == names
        for name, array in ours.items():
            assert array.dtype == np.float32
            assert array.shape == theirs[name].shape
            assert close(array, theirs[name].numpy()), name


@pytest.mark.parametrize("seed", range(30))
def test_a_sequence_is_its_steps_one_by_one_with_an_empty_memory_where_an_episode_starts(seed):
    rng = np.random.default_rng(2_000 + seed)
    spec = draw_network(rng, memory=seed % 5 != 0)  # one without a memory takes sequences too
    network, time, n = stirred(spec, seed), 7, 3
    forward = NumpyForward(spec, network.weights())
    frames = [draw_observation(spec, n, rng) for _ in range(time)]
    starts = rng.random((time, n)) < 0.3
    first = rng.normal(0, 0.5, (n, state_width(spec))).astype(np.float32)
    whole = {name: torch.from_numpy(np.stack([frame[name] for frame in frames])) for name in frames[0]}
    with torch.no_grad():
        unrolled = network.unroll(whole, torch.from_numpy(first), torch.from_numpy(starts))
    states = {"torch": torch.from_numpy(first), "numpy": first}
    for t, frame in enumerate(frames):
        begins = starts[t][:, None]
        with torch.no_grad():
            theirs = network(tensors(frame), torch.where(torch.from_numpy(begins), 0.0, states["torch"]))
        ours = forward(frame, np.where(begins, np.float32(0), states["numpy"]))
        for head in spec.heads:
            assert close(unrolled[head.name][t].numpy(), theirs[head.name].numpy()), (t, head.name)
            assert close(unrolled[head.name][t].numpy(), ours[head.name]), (t, head.name)
        if spec.memory:
            states = {"torch": theirs["state"], "numpy": ours["state"]}
    if spec.memory:
        assert close(unrolled["state"].numpy(), states["numpy"])
    else:
        assert "state" not in unrolled


@pytest.mark.parametrize("memory", [Gru(6), Lstm(6)])
def test_what_was_seen_before_a_start_changes_nothing_behind_it_not_even_a_gradient(memory):
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("value", 1),), (Dense(5),), memory=memory)
    network, rng = stirred(spec, 0), np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(6, 2, 4)), dtype=torch.float32, requires_grad=True)
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 0] = True
    network.unroll({"observation/x": x}, None, starts)["value"][3:].sum().backward()
    assert not x.grad[:3, 0].any()  # cut by its start
    assert x.grad[:3, 1].any()  # goes on


@pytest.mark.parametrize("memory", [Gru(5), Lstm(5)])
def test_a_memory_is_torchs_own_and_without_a_state_an_episode_begins(memory):
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("value", 1),), memory=memory)
    network = stirred(spec, 1)
    weights = {name.removeprefix("memory/"): value for name, value in network.named_parameters()}
    kind = torch.nn.GRU if isinstance(memory, Gru) else torch.nn.LSTM
    theirs = kind(4, 5)
    places = {"weight_ih_l0": "input/weight", "weight_hh_l0": "hidden/weight", "bias_ih_l0": "input/bias"}
    with torch.no_grad():
        for name, place in {**places, "bias_hh_l0": "hidden/bias"}.items():
            getattr(theirs, name).copy_(weights[place])
        x = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(2))
        values = network._head(spec.heads[0], theirs(x)[0].flatten(0, 1)).reshape(8, 3)
        ours = network.unroll({"observation/x": x})
    assert close(ours["value"].numpy(), values.numpy())
    assert (
        network.initial_state(3).shape
        == (3, state_width(spec))
        == NumpyForward(spec, network.weights()).initial_state(3).shape
    )
    assert state_width(spec) == (5 if isinstance(memory, Gru) else 10)


def test_a_value_with_a_trunk_of_its_own_has_a_memory_of_its_own():
    heads = (Head("logits", 2), Head("value", 1))
    spec = NetworkSpec((Input("observation/x", (4,)),), heads, (Dense(3),), separate_value=True, memory=Lstm(2))
    assert state_width(spec) == 8
    network = stirred(spec, 0)
    state = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    x = {"observation/x": torch.zeros(1, 4)}
    with torch.no_grad():
        other = torch.cat((state[:, :4], torch.zeros(1, 4)), 1)
        first, second = network(x, state), network(x, other)
    assert (first["logits"] == second["logits"]).all()
    assert (first["value"] != second["value"]).all()


def test_a_state_of_another_size_is_refused():
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("value", 1),), memory=Gru(3))
    with pytest.raises(ConfigError) as caught:
        NumpyForward(spec, Network(spec, 0).weights())(
            {"observation/x": np.zeros((2, 4), np.float32)}, np.zeros((2, 4))
        )
    assert str(caught.value) == (
        "network: a state of shape (2, 4) for 2 rows. Give back what the step before gave, [n, 3], or none."
    )


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("junk", [7.0, -1e30, float("inf"), float("nan")])
def test_attention_never_sees_what_lies_beyond_the_count(pool, junk):
    inputs = (Input("observation/e", (6, 3)), Input("observation/e/count", (), dtype="int32"))
    encoder = Entities("observation/e", "observation/e/count", 8, 2, 2, pool)
    spec = NetworkSpec(inputs, (Head("logits", 2),), (Dense(5),), entities=(encoder,))
    network, rng = stirred(spec, 4), np.random.default_rng(5)
    forward = NumpyForward(spec, network.weights())
    rows, count = rng.normal(size=(7, 6, 3)).astype(np.float32), np.arange(7, dtype=np.int32)
    other = rows.copy()
    other[np.arange(6) >= count[:, None]] = junk
    seen = [{"observation/e": array, "observation/e/count": count} for array in (rows, other)]
    ours = [forward(one)["logits"] for one in seen]
    with torch.no_grad():
        theirs = [network(tensors(one))["logits"].numpy() for one in seen]
    for first, second in (ours, theirs):
        assert np.isfinite(first).all()
        assert (first == second).all()


def test_attention_asks_nothing_of_the_order_and_answers_to_those_who_are_there():
    inputs = (Input("observation/e", (5, 3)), Input("observation/e/count", (1,)))
    encoder = Entities("observation/e", "observation/e/count", 8, 2, 1)
    spec = NetworkSpec(inputs, (Head("logits", 2),), entities=(encoder,))
    forward, rng = NumpyForward(spec, stirred(spec, 4).weights()), np.random.default_rng(5)
    rows, count = rng.normal(size=(1, 5, 3)).astype(np.float32), np.full((1, 1), 4, np.float32)
    mixed, moved = rows[:, [2, 0, 3, 1, 4]], rows.copy()
    moved[0, 3, 0] += 1

    def logits(array):
        return forward({"observation/e": array, "observation/e/count": count})["logits"]

    assert close(logits(mixed), logits(rows))
    assert np.abs(logits(moved) - logits(rows)).max() > 1e-3


def test_a_residual_block_begins_as_the_identity():
    layers = (Conv(4, 3, 1, 1, "none"), Pool(), Residual(), Residual(2, 3, "relu", "relu"))
    spec = NetworkSpec((Input("observation/x", (2, 9, 9), image=True),), (Head("logits", 2),), (Residual(7),), layers)
    shapes = parameters(spec)
    assert shapes["image/2/first/weight"] == shapes["image/2/second/weight"] == (4, 4, 3, 3)
    assert (shapes["image/3/first/weight"], shapes["image/3/second/weight"]) == ((2, 4, 3, 3), (4, 2, 3, 3))
    assert (shapes["trunk/0/first/weight"], shapes["trunk/0/second/weight"]) == ((7, 100), (100, 7))
    plain = NetworkSpec(spec.inputs, spec.heads, (), layers[:2])
    network = Network(spec, 0)
    x = {"observation/x": torch.randn(3, 2, 9, 9, generator=torch.Generator().manual_seed(0))}
    with torch.no_grad():
        bare = Network(plain, 0)
        bare.set_weights({name: value for name, value in network.weights().items() if name in parameters(plain)})
        assert torch.equal(network._joined(x), bare._joined(x).relu())


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
    for take in (lambda: NumpyForward(spec, weights), lambda: Network(spec, 0).set_weights(weights)):
        with pytest.raises(ModelDamaged) as caught:
            take()
        assert str(caught.value) == text


SET = (Input("e", (5, 3)), Input("n", ()))


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
        NetworkSpec((Input("observation/x", (4,)),), (Head("state", 2),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("mean", 2, bounds=(1.0, 1.0)),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("mean", 2, bounds=(0.0, float("inf"))),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2, bounds=(0.0, 1.0)),)),
        NetworkSpec((Input("legal", (4,)),), (Head("logits", 2),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),), memory=Gru(0)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),), memory=Lstm(1 << 20)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),), (Pool(),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),), (Residual(-1),)),
        NetworkSpec((Input("observation/x", (4, 4), image=True),), (Head("logits", 2),), (), (Residual(0, 2),)),
        NetworkSpec((Input("observation/x", (4, 4), image=True),), (Head("logits", 2),), (), (Pool(2, 1, 2),)),
        NetworkSpec((Input("observation/x", (4, 4), image=True),), (Head("logits", 2),), (), (Dense(3), Pool())),
        NetworkSpec(SET, (Head("logits", 2),), entities=(Entities("e", "nobody"),)),
        NetworkSpec(SET, (Head("logits", 2),), entities=(Entities("e", "n", 6, 4),)),
        NetworkSpec(SET, (Head("logits", 2),), entities=(Entities("e", "n"), Entities("e", "n"))),
        NetworkSpec(SET, (Head("logits", 2),), entities=(Entities("e", "n", blocks=1 << 30),)),
        NetworkSpec(SET, (Head("logits", 2),), entities=(Entities("n", "e"),)),
    ],
)
def test_a_spec_that_cannot_be_is_refused_before_anything_is_allocated(spec):
    with pytest.raises(ConfigError):
        parameters(spec)


def test_a_missing_leaf_is_named():
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),))
    with pytest.raises(ConfigError, match="no observation leaf 'observation/x'"):
        NumpyForward(spec, Network(spec, 0).weights())({"observation/y": np.zeros((1, 4), np.float32)})


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


@pytest.mark.parametrize("frame_stack", [1, 2])
def test_the_default_network_attends_to_entities(frame_stack):
    units = Leaf(name="observation/units", kind="entities", shape=(8, 5))
    count = Leaf(name="observation/units/count", kind="box", dtype="int32", low=0, high=8)
    spec = default_network(seat(units, count), hidden=(32,), frame_stack=frame_stack, memory=Gru(16))
    assert spec.entities == (Entities("observation/units", "observation/units/count"),)
    assert spec.memory == Gru(16)
    assert parameters(spec)["trunk/0/weight"] == (32, frame_stack * (64 + 1))
    forward = NumpyForward(spec, Network(spec, 0).weights())
    out = forward(draw_observation(spec, 3, np.random.default_rng(0)))
    assert out["logits"].shape == (3, 3)


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


def test_multiplications_of_a_row_are_counted_through_every_layer():
    flat = NetworkSpec((Input("observation/state", (4,)),), (Head("logits", 2), Head("value", 1)), trunk=(Dense(8),))
    assert multiplications(flat) == 4 * 8 + 8 * 3
    seen = Input("observation/board", (2, 6, 7), image=True)
    spec = NetworkSpec((seen,), (Head("logits", 7),), image=(Conv(16, 3, 1, 1), Pool(), Dense(5)))
    assert multiplications(spec) == 6 * 7 * 16 * 2 * 9 + 16 * 3 * 4 * 5 + 5 * 7
