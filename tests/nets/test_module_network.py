"""A user's torch module as a network: made, checked, exported, and the same numbers in torch and ONNX Runtime."""

import msgspec
import numpy as np
import pytest
import torch

from sparring.errors import ConfigError, ModelDamaged
from sparring.games.catalogue import spec_of
from sparring.nets.chooser import ActRequest, Chooser
from sparring.nets.forward import forward_without_torch
from sparring.nets.model_files import MODULE_TOLERANCE, check_agreement, disagreement, make_model, read_weights
from sparring.nets.module_network import ModuleNetwork, open_network, torch_forward
from sparring.nets.shapes import parameters, state_width
from sparring.nets.torch_network import default_heads, policy_heads
from sparring.nets.user_code import own_network
from sparring.wire.model import ONNX, Lineage, Model
from sparring.wire.network import Carried, Head, Input, NetworkSpec

GAME = spec_of("cartpole")


def spec_for(name, game="cartpole", heads=None, memory=True):
    seat = spec_of(game).seats[0]
    return own_network(f"user_modules:{name}", seat, heads or default_heads(seat.action), memory=memory)


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("Mlp", "cartpole"),
        ("made", "cartpole"),
        ("of_a_seat", "cartpole"),
        ("one", "cartpole"),
        ("ComparingShapes", "cartpole"),
        ("Lazy", "cartpole"),
        ("Lazy", "connect-four"),
        ("Images", "connect-four"),
        ("Recurrent", "cartpole"),
        ("RecurrentImages", "connect-four"),
    ],
)
def test_a_module_becomes_data_that_runs_like_it(name, game):
    spec = spec_for(name, game)
    again = msgspec.json.decode(msgspec.json.encode(spec), type=NetworkSpec)
    assert again == spec
    net = open_network(spec, 3)
    weights = net.weights()
    assert {key: value.shape for key, value in weights.items()} == parameters(again)
    worst = disagreement(spec, torch_forward(spec, weights), forward_without_torch(again, weights), 7)
    assert worst <= MODULE_TOLERANCE


class Squared(torch.autograd.Function):
    """Keeps what it is given for its gradient, as functions of one's own do."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Convolved(torch.nn.Module):
    """An unpadded convolution of a board, then a function."""

    def __init__(self, function, outputs):
        super().__init__()
        self.body, self.function, self.flat = torch.nn.Conv2d(2, 8, 3), function, torch.nn.Flatten()
        self.heads = torch.nn.ModuleDict({name: torch.nn.Linear(160, units) for name, units in outputs.items()})

    def forward(self, board):
        features = self.flat(self.function(self.body(board)))
        return {name: head(features) for name, head in self.heads.items()}


@pytest.mark.parametrize(("function", "skips"), [(torch.relu, True), (torch.square, True), (Squared.apply, False)])
def test_convolutions_skip_windows_where_a_trial_shows_that_nothing_changes(function, skips):
    (seat, *_), heads = spec_of("connect-four").seats, {"logits": 7, "value": 1}
    leaf = Input("observation/board", seat.observation[0].shape, dtype="uint8", image=True)
    net = ModuleNetwork(NetworkSpec((leaf,), tuple(Head(*one) for one in heads.items())), Convolved(function, heads))
    net.skip_windows()
    assert net._skips == skips


def test_equal_seeds_give_equal_parameters_and_leave_torchs_generator_alone():
    spec = spec_for("Lazy")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, same, other = (open_network(spec, seed).weights() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_a_box_has_raw_means_for_actors_and_actions_for_players():
    game = spec_of("gym:Pendulum-v1")
    seat = game.seats[0]
    spec = own_network("user_modules:Lazy", seat, policy_heads(seat.action))
    assert [head.name for head in spec.heads] == ["mean", "log_std"]
    weights = open_network(spec, 0).weights()
    weights["heads.0.bias"] += 20
    model = make_model(game, spec, weights, "gaussian", Lineage(algorithm="x", config={}, steps={}), 0)
    row = {leaf.name: np.zeros(leaf.shape, leaf.dtype) for leaf in seat.observation}
    decided = Chooser(model).decide(seat, ActRequest(row), np.random.default_rng(0))
    assert decided.action == pytest.approx(seat.action.high, abs=1e-3)
    raw = forward_without_torch(model.card.network, weights)({name: x[None] for name, x in row.items()})["mean"]
    assert raw > 15


def test_a_model_of_a_module_is_deployed_as_onnx_and_needs_no_code():
    spec = spec_for("Recurrent")
    weights = open_network(spec, 1).weights()
    model = make_model(GAME, spec, weights, "categorical", Lineage(algorithm="x", config={}, steps={}), 0)
    read = read_weights(model)
    assert all(np.array_equal(read[name], weights[name]) for name in weights)
    seat, rng = GAME.seats[0], np.random.default_rng(0)
    chooser = Chooser(model)
    chooser.check(seat)
    assert chooser.state_numbers == state_width(spec) == 16
    row = {"observation/state": np.zeros(4, np.float32)}
    decided = chooser.decide(seat, ActRequest(row, legal=np.array([0, 1])), rng)
    assert decided.action == 1
    assert decided.state_after.shape == (16,)
    weights["heads.value.bias"] += 1
    with pytest.raises(ModelDamaged, match="differs from the weights"):
        check_agreement(spec, weights, model.files[ONNX])
    with pytest.raises(ModelDamaged, match="missing or not of this network"):
        read_weights(Model(msgspec.structs.replace(model.card, network=spec_for("Mlp")), model.files))


def test_a_sequence_begins_with_an_empty_memory_where_an_episode_starts():
    spec = spec_for("Recurrent")
    assert spec.memory == Carried(16)
    net = open_network(spec, 0)
    seen = {"observation/state": torch.randn(4, 3, 4)}
    starts = torch.zeros(4, 3, dtype=torch.bool)
    starts[2, 1] = True
    out = net.unroll(seen, torch.randn(3, 16), starts)
    fresh = net.unroll({name: leaf[2:, 1:2] for name, leaf in seen.items()})
    assert torch.allclose(out["logits"][2:, 1:2], fresh["logits"])
    assert torch.allclose(out["state"][1:2], fresh["state"])
    assert not torch.allclose(out["logits"][2:, :1], net.unroll({n: x[2:, :1] for n, x in seen.items()})["logits"])


def test_statistics_move_where_gradients_are_taken_and_nowhere_else():
    net = open_network(spec_for("Lazy"), 0)
    rows = {"observation/state": torch.randn(32, 4)}
    before = net.weights()["body.2.running_mean"]
    with torch.no_grad():
        net(rows)
    assert np.array_equal(net.weights()["body.2.running_mean"], before)
    net(rows)
    assert not np.array_equal(net.weights()["body.2.running_mean"], before)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OtherArguments", "it takes (hidden, depth, width). Let it take (inputs, outputs)"),
        ("WithoutValue", "forward() gives no 'value'. Let forward() return logits [n, 2], value [n, 1]"),
        ("WrongUnits", "forward() gives 'logits' of shape [5, 1] for a batch of 5"),
        ("MeanOverBatch", "forward() gives 'logits' of shape [1, 2] for a batch of 5"),
        ("Forgetful", "its next state is NoneType. Let forward(observation, state) return (outputs, state [n, 16])"),
        ("NotFinite", "forward() gives NaN or infinity as 'logits'"),
        ("Branching", "its ONNX graph gives other numbers than the module itself"),
        ("BranchingOnValues", "forward() takes a tensor as a Python boolean in user_modules.py:"),
        ("CutBatch", "forward() gives 'logits' of shape [16, 2] for a batch of 300"),
        ("DetachedValue", "its 'value' has no gradient, so it cannot learn. Make it from the module's parameters"),
        ("Double", "its parameter 'scale' is torch.float64"),
        ("calls", "it is a int"),
    ],
)
def test_a_module_that_does_not_suit_is_refused_with_the_reason(name, text):
    with pytest.raises(ConfigError) as caught:
        spec_for(name)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"), [("NotExported", "torch cannot export it"), ("FixedBatch", "ONNX Runtime does not run its graph")]
)
def test_exporter_and_runtime_print_nothing_beside_the_reason(name, text, capfd, monkeypatch):
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # the exporter's progress bar would leave a thread behind
    with pytest.raises(ConfigError, match=text):
        spec_for(name)
    assert capfd.readouterr() == ("", "")


def test_a_memory_is_refused_where_the_algorithm_carries_none():
    with pytest.raises(ConfigError, match="it has a memory, and the algorithm carries none"):
        spec_for("Recurrent", memory=False)


def test_a_graph_with_operations_of_its_own_is_refused():
    spec = spec_for("Mlp")
    foreign = spec.module.graph.replace(b"Tanh", b"Tanx")
    bad = msgspec.structs.replace(spec, module=msgspec.structs.replace(spec.module, graph=foreign))
    with pytest.raises(Exception, match="Tanx"):
        forward_without_torch(bad, open_network(spec, 0).weights())


def test_q_values_are_logits():
    spec = spec_for("Mlp", heads=(Head("logits", 2, dueling=True),))
    assert spec.heads == (Head("logits", 2),)
