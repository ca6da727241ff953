"""What every algorithm file promises: it learns the smallest game, a seed says all, and it goes into bytes and back."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from chain_game import SPEC, chain

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError, TrainingStopped
from sparring.games.catalogue import spec_of
from sparring.games.protocol import TERMINATED, TRUNCATED
from sparring.games.scripts import play, script
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete, vector
from sparring.learn.algorithms import ALGORITHMS, open_algorithm, settings_of
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.store import open_store

QUICK = {
    "dqn": ("learning_rate=0.002", "epsilon_steps=1000", "batch_steps=64", "hidden_units=[32]"),
    "r2d2": (
        "learning_rate=0.002",
        "epsilon_steps=1000",
        "batch_sequences=16",
        "burn_in_steps=2",
        "sequence_steps=4",
        "overlap_steps=2",
        "hidden_units=[32]",
        "memory=gru:16",
    ),
    "ppo": ("learning_rate=0.005", "rollout_ticks=32", "hidden_units=[32]", "minibatch_steps=128"),
    "mappo": ("learning_rate=0.005", "rollout_ticks=32", "hidden_units=[32]", "minibatch_steps=128"),
    "impala": ("learning_rate=0.01", "rollout_ticks=16", "hidden_units=[32]"),
    "a3c": ("learning_rate=0.01", "rollout_ticks=8", "hidden_units=[32]"),
    "mmd": ("learning_rate=0.005", "rollout_ticks=32", "hidden_units=[32]", "minibatch_steps=128", "average_updates=5"),
    "alphazero": ("learning_rate=0.005", "rollout_ticks=16", "hidden_units=[32]", "simulations=8"),
    "bc": ("learning_rate=0.005", "batch_steps=64", "hidden_units=[32]"),
    "cql": ("learning_rate=0.005", "batch_steps=64", "hidden_units=[32]", "target_every_updates=20"),
    "iql": ("learning_rate=0.005", "batch_steps=64", "hidden_units=[32]", "target_rate=0.1", "expectile=0.9"),
}
STEPS = {
    "dqn": 6_000,
    "r2d2": 4_000,
    "ppo": 6_000,
    "mappo": 6_000,
    "impala": 12_000,
    "a3c": 12_000,
    "mmd": 12_000,
    "alphazero": 4_000,
    "bc": 6_000,
    "cql": 20_000,
    "iql": 20_000,
}
OPENED = []
DISCRETE = [name for name in ALGORITHMS if name != "sac"]  # which has boxes alone: test_sac.py


@pytest.fixture(autouse=True)
def stores_are_closed():
    yield
    while OPENED:
        OPENED.pop().close()


def learned(algo, config, seed=0, steps=None, game="chain_game:chain"):
    steps = STEPS[algo] if steps is None else steps
    records = open_algorithm(algo).feeds == "records"
    source, topology = ("store", "offline") if records else ("sim", "single")
    wish = TrainRequest(game, algo, source, topology, seed, steps, 8, QUICK[algo])
    store = recorded(config, algo) if records else None
    config = replace(config, replay=replace(config.replay, min_steps=200))
    config = config.layered({"replay.samples_per_insert": 8.0}, "the test", above=True)  # sac's own would take longer
    topology = build(plan(wish, config), store)
    while topology.position < steps:
        topology.iterate()
    return topology


def recorded(config, algo):
    """Fifty walks in a store: by chance, or for a cloner by someone who knows the way."""
    store = open_store(f"{config.store_url}.{algo}")
    OPENED.append(store)
    if not store.stats(SPEC.id).steps:
        player = Walker() if algo == "bc" else script("chain_game:chain", "random")
        for chunks in play(chain(8), [player], list(range(50)), np.random.default_rng(1)):
            store.append(chunks)
    return store


class Walker:
    """Goes right four times in five."""

    name = "walker"

    def act(self, seat, observation, legal, rng):
        return (rng.random(len(observation["observation/place"])) < 0.8).astype(np.int32)


def digest(learner):
    return hashlib.sha256(b"".join(w.tobytes() for _, w in sorted(learner.weights().items()))).hexdigest()


@pytest.mark.parametrize("algo", DISCRETE)
def test_it_learns_the_smallest_game(algo, config):
    learner = learned(algo, config).learner
    played = evaluate("chain_game:chain", NumpyForward(learner.network, learner.weights()), episodes=10, seed=1)
    assert played.mean == pytest.approx(0.7)


@pytest.mark.parametrize("algo", DISCRETE)
def test_the_same_seed_learns_the_same_weights_and_another_seed_others(algo, config):
    first, second, other = (digest(learned(algo, config, seed, 1500).learner) for seed in (7, 7, 8))
    assert first == second
    assert first != other


@pytest.mark.parametrize("algo", DISCRETE)
def test_a_learner_goes_into_bytes_and_goes_on_as_if_nothing_had_happened(algo, config):
    topology = learned(algo, config, steps=1500)
    first = topology.learner
    algorithm = open_algorithm(algo)
    second = algorithm.begin(SPEC, first.config, 99)
    assert digest(second) != digest(first)
    second.load(first.save())
    assert second.save() == first.save()
    batch = topology.iterate().batch
    while batch is None:
        batch = topology.iterate().batch
    second.load(first.save())
    after = [algorithm.update(learner, batch).learner.save() for learner in (first, second)]
    assert after[0] == after[1]


@pytest.mark.parametrize("algo", DISCRETE)
def test_an_update_leaves_its_batch_as_it_was(algo, config):
    topology = learned(algo, config, steps=1500)
    turn = topology.iterate()
    while turn.batch is None:
        turn = topology.iterate()
    before = {name: np.copy(getattr(turn.batch, name)) for name in ("reward", "ending", "action")}
    open_algorithm(algo).update(topology.learner, turn.batch)
    assert all((getattr(turn.batch, name) == column).all() for name, column in before.items())
    assert turn.update.metrics["loss"] == pytest.approx(turn.update.metrics["loss"])


@pytest.mark.parametrize("algo", DISCRETE)
def test_another_networks_checkpoint_is_refused(algo, config):
    algorithm = open_algorithm(algo)
    wide = algorithm.begin(SPEC, settings_of(algorithm, {"hidden_units": [8]}), 0)
    narrow = algorithm.begin(SPEC, settings_of(algorithm, {"hidden_units": [4]}), 0)
    with pytest.raises(TrainingStopped, match="the saved network has other layers"):
        narrow.load(wide.save())


@pytest.mark.parametrize("algo", ["dqn", "r2d2", "cql", "iql"])
def test_a_game_that_it_cannot_play_is_refused_with_a_sentence(algo):
    pair = Leaf(name="action", kind="multi-discrete", shape=(2,), dtype="int32", choices=(2, 3))
    game = GameSpec(id="steer", turns="simultaneous", seats=(seat_with(pair),), max_ticks=9)
    algorithm = open_algorithm(algo)
    with pytest.raises(ConfigError) as error:
        algorithm.begin(game, settings_of(algorithm), 0)
    kinds = "discrete" if algo in ("dqn", "r2d2") else "discrete or box"
    assert str(error.value) == (
        f"game steer: its actions are multi-discrete, and {algo} chooses among {kinds} ones. "
        f"Use ppo, mappo, impala, a3c or bc (docs/algorithms), or train a game with {kinds} actions."
    )


@pytest.mark.parametrize("algo", DISCRETE)
def test_seats_that_see_different_things_are_refused_with_a_sentence(algo):
    algorithm = open_algorithm(algo)
    other = SeatSpec(name="b", observation=(vector("observation/x", 3),), action=discrete(2), reward_bounds=(0.0, 1.0))
    uneven = GameSpec(id="uneven", turns="simultaneous", seats=(seat_with(discrete(2)), other), max_ticks=9)
    with pytest.raises(ConfigError, match="seats 'a' and 'b' see or do different things"):
        algorithm.begin(uneven, settings_of(algorithm), 0)


def seat_with(action):
    return SeatSpec(name="a", observation=(vector("observation/x", 2),), action=action, reward_bounds=(0.0, 1.0))


def test_dqn_never_chooses_an_illegal_action_for_its_target(config):
    algorithm = open_algorithm("dqn")
    learner = algorithm.begin(spec_of("connect-four"), settings_of(algorithm, {"image_layers": ["flat"]}), 0)
    from sparring.learn.algorithms.dqn import outcomes

    def td_errors(*given):
        chosen, goal = outcomes(*given)
        return (goal - chosen).mean(1)

    from sparring.learn.protocol import Batch

    boards = np.zeros((7, 2, 6, 7), np.uint8)
    values = NumpyForward(learner.network, learner.weights())({"observation/board": boards[:1]})["logits"][0]
    batch = Batch(
        observation={"observation/board": boards},
        action=np.zeros(7, np.int32),
        reward=np.zeros(7, np.float32),
        ending=np.zeros(7, np.uint8),
        next_observation={"observation/board": boards},
        next_legal=np.eye(7, dtype=bool),
        n_steps=np.ones(7, np.int32),
    )
    errors = td_errors(learner.online, learner.target, batch, learner.config).detach().numpy()
    assert errors == pytest.approx(0.99 * values - values[0], abs=1e-5)
    ended = replace(batch, ending=np.full(7, TERMINATED, np.uint8))
    errors = td_errors(learner.online, learner.target, ended, learner.config).detach().numpy()
    assert errors == pytest.approx(np.full(7, -values[0]), abs=1e-5)
    cut = replace(batch, ending=np.full(7, TRUNCATED, np.uint8))
    errors = td_errors(learner.online, learner.target, cut, learner.config).detach().numpy()
    assert errors == pytest.approx(0.99 * values - values[0], abs=1e-5)


def test_our_adam_takes_the_steps_of_torchs():
    import torch

    from sparring.learn.optim import Adam

    torch.manual_seed(0)
    start = [torch.randn(3, 4), torch.randn(5)]
    ours, theirs = ([torch.nn.Parameter(value.clone()) for value in start] for _ in range(2))
    own, reference = Adam(ours, 0.01, epsilon=1e-5), torch.optim.Adam(theirs, lr=0.01, eps=1e-5)
    for turn in range(20):
        own.descend(sum(((value - turn) ** 2).sum() for value in ours), max_norm=1.0)
        reference.zero_grad()
        sum(((value - turn) ** 2).sum() for value in theirs).backward()
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)
