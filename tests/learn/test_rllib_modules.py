"""Our networks inside RLlib: what its modules say, what NumPy says and what ONNX Runtime says are the same."""

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from reach_game import SPEC as REACH

from sparring.games.catalogue import spec_of
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete, vector
from sparring.learn.algorithms import settings_of
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.onnx_graph import to_onnx
from sparring.nets.policies import squashed
from sparring.wire.ids import GameId

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # RLlib warns of itself on import

SCREEN = GameSpec(
    id=GameId("screen"),
    turns="simultaneous",
    seats=(
        SeatSpec(
            name="player",
            observation=(Leaf(name="observation/screen", kind="image", shape=(84, 84), dtype="uint8"),),
            action=discrete(6),
            reward_bounds=(-1.0, 1.0),
        ),
    ),
    max_ticks=100,
    frame_stack=4,
)
MIXED = GameSpec(
    id=GameId("mixed"),
    turns="simultaneous",
    seats=(
        SeatSpec(
            name="player",
            observation=(
                vector("observation/place", 3, -100.0, 300.0),
                Leaf(name="observation/card", kind="discrete", dtype="int32", choices=(5,)),
                Leaf(name="observation/board", kind="image", shape=(2, 8, 8), dtype="float32", low=0.0, high=1.0),
            ),
            action=discrete(4),
            reward_bounds=(-1.0, 1.0),
        ),
    ),
    max_ticks=100,
)
CASES = [
    (spec_of("cartpole"), "PPO", False, ()),
    (spec_of("cartpole"), "BC", True, ()),
    (spec_of("cartpole"), "SAC", False, ()),
    (spec_of("connect-four"), "PPO", True, ()),
    (spec_of("connect-four"), "DQN", True, ()),
    (MIXED, "APPO", True, ("hidden_units=[32]",)),
    (MIXED, "DQN", False, ("dueling=false", "activation=relu")),
    (SCREEN, "DQN", False, ("hidden_units=[512]", "activation=relu")),
    (REACH, "PPO", False, ()),
    (REACH, "SAC", False, ()),
    (REACH, "CQL", False, ()),
    (REACH, "IQL", False, ()),
]


def module_of(game, name, masks, words=()):
    """RLlib's module for the game, with how the game is told to it."""
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    from sparring.learn.plan import assignments
    from sparring.learn.rllib.algorithm import open_rllib
    from sparring.learn.rllib.environments import action_space_of, flat_observation_of
    from sparring.learn.rllib.modules import MODULES, critic_of

    algorithm = open_rllib(f"rllib:{name}")
    settings = settings_of(algorithm, assignments(tuple(words)))
    network, seat = algorithm.network(game, settings), game.seats[0]
    observation = flat_observation_of(seat, game.frame_stack, masks=masks)
    actions = action_space_of(seat.action, algorithm.offer)
    config = {"network": network, "observation": observation, "seed": 3, "critic": critic_of(network)}
    config |= {"twin_q": True, "double_q": True, "epsilon": 0.1, "num_actions": 4}
    spec = RLModuleSpec(
        module_class=MODULES[name],
        observation_space=observation.space,
        action_space=actions.space,
        model_config=config,
    )
    return spec.build(), observation, actions, network


def drawn(game, rng, n):
    """n rows of what its first seat may see."""
    seen = {}
    for leaf in game.seats[0].observation:
        shape = (n, *leaf.stacked(game.frame_stack))
        if leaf.choices:
            seen[leaf.name] = rng.integers(0, leaf.choices[0], shape).astype(leaf.dtype)
        elif leaf.dtype == "uint8":
            high = 255 if leaf.high is None else int(leaf.high)
            seen[leaf.name] = rng.integers(0, high, shape, endpoint=True).astype(np.uint8)
        else:
            seen[leaf.name] = rng.normal(size=shape).astype(leaf.dtype)
    return seen


def shaken(module, rng):
    """The module with other weights than those it began with, whose last layers are nearly nothing."""
    with torch.no_grad():
        for value in module.published.parameters():
            value += torch.from_numpy(rng.normal(scale=0.05, size=value.shape).astype(np.float32))


@pytest.mark.parametrize(("game", "name", "masks", "words"), CASES, ids=lambda one: getattr(one, "id", str(one)))
def test_rllib_numpy_and_onnx_agree_on_what_is_best(game, name, masks, words):
    rng = np.random.default_rng(1)
    module, observation, actions, network = module_of(game, name, masks, words)
    shaken(module, rng)
    seen = drawn(game, rng, 64)
    choices = game.seats[0].action.masks
    legal = (rng.random((64, choices)) < 0.6) | (np.arange(choices) == 0) if masks else None
    rows = {"obs": torch.from_numpy(observation.flatten(seen, legal))}
    weights = module.published.weights()
    ours = NumpyForward(network, weights)(seen)
    session = onnxruntime.InferenceSession(to_onnx(network, weights))
    given = dict(seen) | ({"legal": np.ones((64, choices), np.uint8)} if choices else {})
    with torch.no_grad():
        out = module.forward_inference(rows)
        values = module.compute_q_values(rows)["qf_preds"] if name == "DQN" else None
    if choices:
        exported = session.run(["logits"], given)[0]
        said = (values if name == "DQN" else out["action_dist_inputs"]).numpy()
        allowed = np.ones_like(said, bool) if legal is None else legal
        assert np.abs(np.where(allowed, said - ours["logits"], 0)).max() <= 1e-4
        assert np.abs(exported - ours["logits"]).max() <= 1e-4
        best = np.where(allowed, ours["logits"], -np.inf).argmax(1)
        np.testing.assert_array_equal(said.argmax(1), best)
        np.testing.assert_array_equal(np.where(allowed, exported, -np.inf).argmax(1), best)
        if name == "DQN":
            np.testing.assert_array_equal(out["actions"].numpy(), best)
    else:
        said = out["action_dist_inputs"].numpy()
        size = said.shape[1] // 2
        assert np.abs(said[:, :size] - ours["mean"]).max() <= 1e-4
        assert np.abs(session.run(["mean"], given)[0] - ours["mean"]).max() <= 1e-4
        greedy = np.tanh(said[:, :size]) if actions.squashes else said[:, :size]
        bounds = (game.seats[0].action.low, game.seats[0].action.high)
        np.testing.assert_allclose(actions.to_game(greedy), squashed(ours["mean"], bounds), atol=1e-4)


def test_an_action_of_the_game_comes_back_from_rllibs_numbers():
    from sparring.learn.rllib.algorithm import OFFERS
    from sparring.learn.rllib.environments import action_space_of

    done = np.random.default_rng(2).uniform(-0.99, 2.99, (50, 2)).astype(np.float32)
    for name in ("BC", "CQL"):
        actions = action_space_of(REACH.seats[0].action, OFFERS[name])
        assert isinstance(actions.space, gymnasium.spaces.Box)
        np.testing.assert_allclose(actions.to_game(actions.from_game(done)), done, atol=1e-5)


def test_packed_rows_give_back_what_was_seen_and_legal():
    from sparring.learn.rllib.environments import flat_observation_of

    seen = drawn(MIXED, np.random.default_rng(3), 8)
    observation = flat_observation_of(MIXED.seats[0], 1, masks=True)
    legal = np.random.default_rng(4).random((8, 4)) < 0.5
    rows = observation.flatten(seen, legal)
    leaves, mask = observation.unflatten(torch.from_numpy(rows))
    np.testing.assert_array_equal(mask.numpy(), legal)
    for name, column in seen.items():
        np.testing.assert_array_equal(leaves[name].numpy(), column)
