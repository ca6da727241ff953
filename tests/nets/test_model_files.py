"""A model's files say the same as its weights in ONNX Runtime and in NumPy; anything else is refused."""

import json
import struct

import numpy as np
import onnx
import onnxruntime
import pytest

from random_networks import draw_network, draw_observation, in_game_units
from sparring.errors import ConfigError, ModelDamaged
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete, vector
from sparring.nets.model_files import (
    MAX_HEADER_BYTES,
    check_agreement,
    make_model,
    parse_weights,
    read_weights,
    write_weights,
)
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.onnx_graph import ILLEGAL, OPSET, to_onnx
from sparring.nets.policies import best, squashed
from sparring.nets.shapes import state_width
from sparring.nets.torch_network import Network, default_network
from sparring.wire.ids import GameId
from sparring.wire.model import ONNX, WEIGHTS, Lineage, Model
from sparring.wire.network import Dense, Entities, Gru, Head, Input, Lstm, NetworkSpec

SEAT = SeatSpec(name="a", observation=(vector("observation/x", 4),), action=discrete(3), reward_bounds=(0.0, 1.0))
GAME = GameSpec(id=GameId("small"), turns="simultaneous", seats=(SEAT,), max_ticks=9)
LINEAGE = Lineage(algorithm="ppo", config={}, steps={"selfplay": 1})
NETWORK = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 3), Head("value", 1)), (Dense(8),))


def drawn_weights(spec, seed):
    rng = np.random.default_rng(seed)
    return {n: (w + rng.normal(0, 0.1, w.shape)).astype(np.float32) for n, w in Network(spec, seed).weights().items()}


def session(content):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("seed", range(60))
def test_onnx_runtime_and_numpy_give_the_same_numbers_and_choose_alike(seed):
    rng = np.random.default_rng(1_000 + seed)
    spec = draw_network(rng)
    weights = drawn_weights(spec, seed)
    forward, run = NumpyForward(spec, weights), session(to_onnx(spec, weights))
    for n in (1, 2, 33):
        observation = draw_observation(spec, n, rng)
        state = rng.normal(0, 0.5, (n, state_width(spec))).astype(np.float32)
        ours, given = in_game_units(spec, forward(observation, state)), dict(observation)
        if spec.memory:
            given["state"] = state
        legal = None
        if "logits" in ours:
            legal = rng.random(ours["logits"].shape) < 0.6
            legal[np.arange(n), rng.integers(0, legal.shape[1], n)] = True
            given["legal"] = legal.astype(np.uint8)
        wanted = ["state_out" if name == "state" else name for name in ours]
        theirs = dict(zip(ours, run.run(wanted, given), strict=True))
        for name, array in ours.items():
            expected = np.where(legal, array, np.float32(ILLEGAL)) if name == "logits" else array
            assert theirs[name].shape == expected.shape
            assert np.abs(theirs[name] - expected).max() <= 1e-5 * max(1.0, np.abs(array).max()), name
        if legal is not None:
            chosen = best(ours["logits"], legal, rng).action
            assert (chosen == theirs["logits"].argmax(axis=1)).all()
            assert legal[np.arange(n), chosen].all()


def test_inputs_and_outputs_are_named_typed_and_free_in_their_batch():
    spec = NetworkSpec((Input("observation/x", (2, 3), dtype="uint8"),), (Head("logits", 3), Head("value", 1)))
    run = session(to_onnx(spec, drawn_weights(spec, 0)))
    assert [(i.name, i.type, i.shape) for i in run.get_inputs()] == [
        ("observation/x", "tensor(uint8)", ["batch", 2, 3]),
        ("legal", "tensor(uint8)", ["batch", 3]),
    ]
    assert [(o.name, o.shape) for o in run.get_outputs()] == [("logits", ["batch", 3]), ("value", ["batch"])]


BOX = Leaf(name="action", kind="box", shape=(3,), low=-2.0, high=0.5)


def test_a_model_of_a_box_tells_its_mean_in_the_games_own_units_and_its_spread_as_learned():
    seat = SeatSpec(name="a", observation=SEAT.observation, action=BOX, reward_bounds=(0.0, 1.0))
    game = GameSpec(id=GameId("small"), turns="simultaneous", seats=(seat,), max_ticks=9)
    spec = default_network(seat, memory=Gru(4))
    weights = {n: a * (30 if n.startswith(("mean", "log_std")) else 1) for n, a in drawn_weights(spec, 0).items()}
    model = make_model(game, spec, weights, "gaussian", LINEAGE, 0)
    assert [head.bounds for head in model.card.network.heads] == [(-2.0, 0.5), None, None]
    assert parse_weights(model.card.network, model.files[WEIGHTS]).keys() == weights.keys()
    run, x = session(model.files[ONNX]), np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    given = {"observation/x": x, "state": np.zeros((50, 4), np.float32)}
    mean, log_std = run.run(["mean", "log_std"], given)
    raw = NumpyForward(spec, weights)({"observation/x": x})
    assert -2.0 <= mean.min() < -1.9 < 0.4 < mean.max() <= 0.5
    np.testing.assert_allclose(mean, squashed(raw["mean"], (-2.0, 0.5)), atol=1e-5)
    np.testing.assert_allclose(log_std, raw["log_std"], rtol=1e-4, atol=1e-4)
    assert log_std.min() < -5, "as learned, not as clamped"


def test_a_graph_that_forgets_the_bounds_is_refused():
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("mean", 3, bounds=(-2.0, 0.5)), Head("log_std", 3)))
    weights = drawn_weights(spec, 0)
    bare = NetworkSpec(spec.inputs, (Head("mean", 3), Head("log_std", 3)))
    assert check_agreement(spec, weights, to_onnx(spec, weights)) <= 1e-5
    with pytest.raises(ModelDamaged, match="differs from the weights by"):
        check_agreement(spec, weights, to_onnx(bare, weights))


def test_a_mean_of_another_size_suits_no_seat():
    seat = SeatSpec(name="a", observation=SEAT.observation, action=BOX, reward_bounds=(0.0, 1.0))
    game = GameSpec(id=GameId("small"), turns="simultaneous", seats=(seat,), max_ticks=9)
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("mean", 2), Head("log_std", 2)))
    with pytest.raises(ConfigError, match="no seat of small suits"):
        make_model(game, spec, drawn_weights(spec, 0), "gaussian", LINEAGE, 0)


def test_a_memory_is_one_more_input_and_output():
    spec = NetworkSpec((Input("observation/x", (2,)),), (Head("logits", 3), Head("value", 1)), memory=Lstm(4))
    run = session(to_onnx(spec, drawn_weights(spec, 0)))
    assert [(i.name, i.shape) for i in run.get_inputs()][-2:] == [("state", ["batch", 8]), ("legal", ["batch", 3])]
    assert [(o.name, o.shape) for o in run.get_outputs()][-1] == ("state_out", ["batch", 8])


@pytest.mark.parametrize("memory", [Gru(6), Lstm(6)])
def test_a_graph_that_remembers_otherwise_is_refused_though_its_first_step_agrees(memory):
    spec = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 3),), (Dense(8),), memory=memory)
    weights = drawn_weights(spec, 0)
    other = weights | {"memory/hidden/weight": weights["memory/hidden/weight"] * 2}  # unseen while the state is zero
    assert check_agreement(spec, weights, to_onnx(spec, weights)) <= 1e-5
    with pytest.raises(ModelDamaged, match="differs from the weights by"):
        check_agreement(spec, weights, to_onnx(spec, other))


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_the_graph_never_sees_entities_beyond_their_count(pool):
    inputs = (Input("observation/e", (6, 3)), Input("observation/e/count", (), dtype="int32"))
    encoder = Entities("observation/e", "observation/e/count", 8, 2, 2, pool)
    spec = NetworkSpec(inputs, (Head("value", 1),), entities=(encoder,))
    run, rng = session(to_onnx(spec, drawn_weights(spec, 0))), np.random.default_rng(0)
    rows, count = rng.normal(size=(7, 6, 3)).astype(np.float32), np.arange(7, dtype=np.int32)
    other = np.where((np.arange(6) < count[:, None])[..., None], rows, np.float32(np.nan))
    first, second = (run.run(["value"], {"observation/e": x, "observation/e/count": count})[0] for x in (rows, other))
    assert np.isfinite(first).all()
    assert (first == second).all()


def test_equal_weights_give_equal_files_in_the_opset_that_engines_take():
    first, second = (to_onnx(NETWORK, drawn_weights(NETWORK, 0)) for _ in range(2))
    assert first == second
    assert onnx.load_from_string(first).opset_import[0].version == OPSET
    assert write_weights(NETWORK, drawn_weights(NETWORK, 0)) == write_weights(NETWORK, drawn_weights(NETWORK, 0))


@pytest.mark.parametrize("seed", range(10))
def test_weights_come_back_bit_for_bit(seed):
    spec = draw_network(np.random.default_rng(seed))
    weights = drawn_weights(spec, seed)
    back = parse_weights(spec, write_weights(spec, weights))
    assert list(back) == list(weights)
    assert all((back[name] == weights[name]).all() and back[name].flags.writeable for name in weights)


def test_a_model_is_made_with_its_game_and_read_back():
    network = default_network(SEAT)
    weights = Network(network, 5).weights()
    model = make_model(GAME, network, weights, "categorical", LINEAGE, 123)
    assert (model.card.game, model.card.version, model.card.spec) == ("small", "1", GAME.hash)
    assert set(model.files) == {WEIGHTS, ONNX} == set(model.card.files)
    assert all((read_weights(model)[name] == weights[name]).all() for name in weights)
    assert make_model(GAME, network, weights, "categorical", LINEAGE, 123).id == model.id


def test_a_network_that_sees_what_no_seat_sees_is_no_model_of_the_game():
    for network in (
        NetworkSpec((Input("observation/x", (5,)),), (Head("logits", 3),)),
        NetworkSpec((Input("observation/x", (4,), dtype="float64"),), (Head("logits", 3),)),
        NetworkSpec((Input("observation/y", (4,)),), (Head("logits", 3),)),
        NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),)),
    ):
        with pytest.raises(ConfigError) as caught:
            make_model(GAME, network, drawn_weights(network, 0), "greedy", LINEAGE, 0)
        assert str(caught.value) == "model: no seat of small suits the network's inputs. Use default_network."


def test_nan_weights_make_no_model():
    weights = drawn_weights(NETWORK, 0)
    weights["trunk/0/bias"][3] = np.nan
    with pytest.raises(ModelDamaged, match="trunk/0/bias holds NaN or infinity"):
        make_model(GAME, NETWORK, weights, "categorical", LINEAGE, 0)


def test_a_graph_of_other_weights_is_refused():
    with pytest.raises(ModelDamaged, match="differs from the weights by"):
        check_agreement(NETWORK, drawn_weights(NETWORK, 0), to_onnx(NETWORK, drawn_weights(NETWORK, 1)))
    with pytest.raises(ModelDamaged, match="ONNX Runtime refuses it"):
        check_agreement(NETWORK, drawn_weights(NETWORK, 0), b"\x80\x04 not a graph")


def file_of(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(first, last, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


GOOD = NetworkSpec((Input("observation/x", (1,)),), (Head("value", 1),))  # two parameters of one number each
HOSTILE = {
    "empty": b"",
    "short": b"\x01\x02",
    "length 2^63": struct.pack("<Q", 1 << 63) + b"{}",
    "length 2^64 - 1": struct.pack("<Q", (1 << 64) - 1) + b"{}",
    "length past the end": struct.pack("<Q", 100) + b"{}",
    "header above the limit": file_of(b" " * (MAX_HEADER_BYTES + 1)),
    "100,000 tensors": file_of({f"t{i}": entry(0, 4) for i in range(100_000)}),
    "5,000 tensors below the header's limit": file_of({f"t{i}": {"data_offsets": 0} for i in range(5_000)}),
    "not JSON": file_of(b"\x80\x04nonsense"),
    "deep JSON": file_of(b'{"a":' * 10_000),
    "not UTF-8": file_of(b'{"\xff\xfe":1}'),
    "missing": file_of({"value/weight": entry(0, 4, (1, 1))}, bytes(4)),
    "unknown": file_of({"value/weight": entry(0, 4, (1, 1)), "x": entry(4, 8)}, bytes(8)),
    "overlapping": file_of({"value/weight": entry(0, 4, (1, 1)), "value/bias": entry(0, 4)}, bytes(4)),
    "a hole": file_of({"value/weight": entry(0, 4, (1, 1)), "value/bias": entry(8, 12)}, bytes(12)),
    "out of range": file_of({"value/weight": entry(0, 4, (1, 1)), "value/bias": entry(4, 8)}, bytes(4)),
    "backwards": file_of({"value/weight": entry(4, 0, (1, 1)), "value/bias": entry(4, 8)}, bytes(8)),
    "negative": file_of({"value/weight": entry(-4, 0, (1, 1)), "value/bias": entry(0, 4)}, bytes(8)),
    "trailing": file_of({"value/weight": entry(0, 4, (1, 1)), "value/bias": entry(4, 8)}, bytes(9)),
    "huge shape": file_of({"value/weight": entry(0, 4, (1 << 40, 1 << 40)), "value/bias": entry(4, 8)}, bytes(8)),
    "another dtype": file_of({"value/weight": entry(0, 4, (1, 1), "I32"), "value/bias": entry(4, 8)}, bytes(8)),
    "NaN": file_of(
        {"value/weight": entry(0, 4, (1, 1)), "value/bias": entry(4, 8)}, struct.pack("<ff", float("nan"), 0)
    ),
    "infinity": file_of(
        {"value/weight": entry(0, 4, (1, 1)), "value/bias": entry(4, 8)}, struct.pack("<ff", 0, float("inf"))
    ),
}


def test_the_hostile_files_differ_from_a_good_one_by_their_fault_alone():
    good = file_of({"value/weight": entry(0, 4, (1, 1)), "value/bias": entry(4, 8)}, bytes(8))
    assert set(parse_weights(GOOD, good)) == {"value/weight", "value/bias"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_weights_file_is_refused(name):
    with pytest.raises(ModelDamaged):
        parse_weights(GOOD, HOSTILE[name])


def test_a_pickle_in_place_of_weights_never_runs(tmp_path):
    canary = tmp_path / "canary"
    text = b"cposix\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."  # what pickle.loads would run
    card = make_model(GAME, NETWORK, drawn_weights(NETWORK, 0), "categorical", LINEAGE, 0).card
    with pytest.raises(ModelDamaged):
        read_weights(Model(card, {WEIGHTS: text}))
    with pytest.raises(ModelDamaged):
        check_agreement(NETWORK, drawn_weights(NETWORK, 0), text)
    assert not canary.exists()


def test_a_model_without_weights_says_so():
    card = make_model(GAME, NETWORK, drawn_weights(NETWORK, 0), "categorical", LINEAGE, 0).card
    with pytest.raises(ModelDamaged, match=r"it has no weights\.safetensors"):
        read_weights(Model(card, {}))
