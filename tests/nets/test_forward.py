"""Networks that see images: three ways to pass them agree, and no short cut of learning changes a number."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.config import Config
from sparring.games.catalogue import open_game, spec_of
from sparring.learn.algorithms.feeds import with_image_layers
from sparring.learn.optim import BETA_1, BETA_2, Adam
from sparring.learn.plan import TrainRequest, plan
from sparring.nets.forward import forward_for_matches, forward_with_torch, forward_without_torch
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.onnx_graph import OnnxForward, to_onnx
from sparring.nets.torch_network import Network, TorchForward, default_network
from sparring.nets.torch_state import take_rows
from sparring.wire.network import Gru, NetworkSpec

PONG = spec_of("atari:Pong")
SCREEN = "observation/screen"


def pong_network(memory: Gru | None = None) -> NetworkSpec:
    return default_network(PONG.seats[0], hidden=(32,), activation="relu", frame_stack=4, memory=memory)


def images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 4, 84, 84), dtype=np.uint8)


@pytest.mark.parametrize("memory", [None, Gru(8)])
def test_torch_and_onnx_act_on_images_as_numpy_does(memory: Gru | None) -> None:
    spec = pong_network(memory)
    weights = Network(spec, 3).weights()
    seen = {SCREEN: images(5)}
    state = None if memory is None else np.random.default_rng(1).random((5, 8), np.float32)
    wanted = NumpyForward(spec, weights)(seen, state)
    for forward in (TorchForward(Network.with_weights(spec, weights)), OnnxForward(spec, to_onnx(spec, weights))):
        given = forward(seen, state)
        assert given.keys() == wanted.keys()
        for name, numbers in wanted.items():
            assert given[name].shape == numbers.shape
            np.testing.assert_allclose(given[name], numbers, rtol=1e-4, atol=1e-5)


def test_what_acts_keeps_its_weights_while_the_learner_goes_on() -> None:
    spec = pong_network()
    net = Network(spec, 3)
    weights, seen = net.weights(), {SCREEN: images(2)}
    acting = [forward_with_torch(spec, weights), forward_without_torch(spec, weights)]
    before = [forward(seen)["logits"].copy() for forward in acting]
    for array in weights.values():
        array += 1.0
    for forward, then in zip(acting, before, strict=True):
        np.testing.assert_array_equal(forward(seen)["logits"], then)


def test_images_go_by_torch_or_onnx_and_everything_else_by_numpy() -> None:
    flat = with_image_layers(pong_network(), ("flat",))
    weights = Network(flat, 0).weights()
    assert type(forward_with_torch(flat, weights)) is NumpyForward
    assert type(forward_without_torch(flat, weights)) is NumpyForward
    spec = pong_network()
    weights = Network(spec, 0).weights()
    assert type(forward_with_torch(spec, weights)) is TorchForward
    assert type(forward_without_torch(spec, weights)) is OnnxForward


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("memory", [None, Gru(8)])
def test_a_network_of_matches_skips_empty_cells_and_answers_the_same(activation, memory) -> None:
    seat = spec_of("connect-four").seats[0]
    spec = default_network(seat, hidden=(32, 16), activation=activation, frame_stack=1, memory=memory)
    spec = replace(spec, image=(), inputs=tuple(replace(one, image=False) for one in spec.inputs))
    weights, rng = Network(spec, 3).weights(), np.random.default_rng(0)
    boards = {"observation/board": rng.integers(0, 2, (4_100, 2, 6, 7), dtype=np.uint8)}
    boards["observation/board"][:9] = rng.integers(0, 256, (9, 2, 6, 7))  # nothing says that bytes are 0 or 1
    boards["observation/board"][9] = 0
    wanted, matches = NumpyForward(spec, weights)(boards), forward_for_matches(spec, weights)
    given = matches(boards)
    assert given.keys() == wanted.keys()
    for name, numbers in wanted.items():
        np.testing.assert_allclose(given[name], numbers, rtol=1e-4, atol=1e-4)
    few = {"observation/board": boards["observation/board"][4_000:4_003]}
    np.testing.assert_allclose(matches(few)["logits"], given["logits"][4_000:4_003], rtol=1e-5, atol=1e-5)


def test_arranging_pictures_once_and_picking_rows_of_them_changes_no_number() -> None:
    net = Network(pong_network(), 0)
    plain = {SCREEN: torch.from_numpy(images(12))}
    arranged, rows = net.arranged(plain), torch.tensor([7, 0, 7, 11])
    some = take_rows(arranged[SCREEN], rows)
    assert torch.equal(some, plain[SCREEN][rows])
    assert some.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(take_rows(torch.arange(12.0), rows), torch.tensor([7.0, 0.0, 7.0, 11.0]))
    with torch.no_grad():
        for name, numbers in net({SCREEN: plain[SCREEN][rows]}).items():
            torch.testing.assert_close(net({SCREEN: some})[name], numbers)
    assert plain[SCREEN].dtype == torch.uint8  # scaling happened in memory of its own


def test_whoever_gives_floats_finds_them_unchanged() -> None:
    net = Network(pong_network(), 0)
    given = torch.from_numpy(images(2)).float()
    kept = given.clone()
    net({SCREEN: given})
    assert torch.equal(given, kept)


def test_adam_takes_the_steps_of_its_paper() -> None:
    start = np.random.default_rng(0).normal(size=5)
    value = torch.nn.Parameter(torch.tensor(start, dtype=torch.float32))
    adam = Adam([value], 0.1, epsilon=1e-5)
    theta, m, v = start.copy(), np.zeros(5), np.zeros(5)
    for t in range(1, 8):
        gradient = 2 * theta
        gradient *= min(1.0, 0.5 / (np.linalg.norm(gradient) + 1e-6))
        m, v = BETA_1 * m + (1 - BETA_1) * gradient, BETA_2 * v + (1 - BETA_2) * gradient**2
        theta = theta - 0.1 * (m / (1 - BETA_1**t)) / (np.sqrt(v / (1 - BETA_2**t)) + 1e-5)
        adam.descend(value.square().sum(), 0.5)
        np.testing.assert_allclose(value.detach().numpy(), theta, rtol=1e-4, atol=1e-6)
        if t == 4:  # a checkpoint in between changes nothing
            saved, again = adam.save(), Adam([value], 0.1, epsilon=1e-5)
            again.load(saved)
            adam = again


def test_rewards_of_atari_are_clipped_for_the_learner_and_told_as_earned() -> None:
    spec = default_network(spec_of("atari:MsPacman").seats[0], hidden=(8,), frame_stack=4)
    spec = with_image_layers(spec, ("flat",))
    forward = NumpyForward(spec, Network(spec, 0).weights())
    batches = []
    for clip in (0.0, 1.0):
        game = open_game("atari:MsPacman", 2)
        actor = Actor(game, forward, "categorical", np.random.default_rng(0), Opponents(spec, 0.0), clip)
        batches.append(actor.rollout(110))
    earned, clipped = (batch.reward for batch in batches)
    assert earned.max() >= 10  # a pellet
    np.testing.assert_array_equal(clipped, np.clip(earned, -1, 1))


def test_every_atari_game_has_the_settings_of_its_kind_and_others_keep_their_own() -> None:
    for game in ("atari:Pong", "atari:Breakout(sticky=0.25)"):
        agreed = plan(TrainRequest(game, "ppo"), Config())
        assert (agreed.settings.hidden_units, agreed.settings.clip, agreed.reward_clip) == ((512,), 0.1, 1.0)
        assert agreed.envs * agreed.settings.rollout_ticks == 1024
    assert plan(TrainRequest("atari:Pong", "dqn"), Config()).replay.capacity_steps == 200_000
    assert plan(TrainRequest("cartpole", "ppo"), Config()).reward_clip == 0.0
