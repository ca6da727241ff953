"""Learning from records: a clone does as its teacher, and caution keeps to what was seen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chain_game import SPEC, chain
from reach_game import SPEC as REACH
from reach_game import reach

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError
from sparring.games.catalogue import open_game, spec_of
from sparring.games.scripts import play, script
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.algorithms.iql import expectile_loss
from sparring.learn.algorithms.learner import Critics, critic_heads, critic_spec, value_of, values_of_many
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.protocol import Batch
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.nets.model_files import read_weights
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.torch_network import default_network
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.store.protocol import Query


class Scripted:
    """Does what it is told for each view."""

    name = "told"

    def __init__(self, act):
        self._act = act

    def act(self, seat, observation, legal, rng):
        return self._act(observation, rng).astype(np.int32)


def record(config, game, players, episodes):
    with open_store(config.store_url) as store:
        for chunks in play(game, players, list(range(episodes)), np.random.default_rng(5), "play"):
            store.append(chunks)


@pytest.mark.slow
def test_a_clone_agrees_with_its_script_on_games_it_never_saw(config):
    balance = script("cartpole", "balance")
    record(config, open_game("cartpole", 16), [balance], 60)
    settings = ("hidden_units=[64]", "learning_rate=0.005", "schedule=linear")
    request = TrainRequest("cartpole", "bc", "store", steps=512_000, settings=settings)
    result = train(request, TrainOptions(), config, lambda progress: None)
    with open_registry(config.registry_url) as registry:
        model = registry.fetch(result.published.model)
    forward = NumpyForward(model.card.network, read_weights(model))
    rng = np.random.default_rng(9)
    unseen = play(open_game("cartpole", 8), [balance], [10**6 + i for i in range(8)], rng)
    views = np.concatenate([chunk.columns["observation/state"] for chunks in unseen for chunk in chunks])
    taken = np.concatenate([chunk.columns["action"] for chunks in unseen for chunk in chunks])
    agreed = forward({"observation/state": views})["logits"].argmax(axis=1) == taken
    assert agreed.mean() >= 0.95
    assert model.card.policy == "categorical"
    assert model.card.lineage.steps == {"play": 60 * 500}


def test_cql_values_what_nobody_did_below_what_dqn_makes_of_it(config):
    record(config, chain(8), [Scripted(lambda seen, rng: np.ones(len(seen["observation/place"])))], 20)
    views = {"observation/place": np.eye(5, dtype=np.float32)[:4]}
    values = {}
    with open_store(config.store_url) as store:
        for algo in ("dqn", "cql"):
            settings = ("hidden_units=[32]", "batch_steps=32", "learning_rate=0.005", "n_steps=1")
            topology = build(plan(TrainRequest("chain_game:chain", algo, "store", settings=settings), config), store)
            for _ in range(300):
                topology.iterate()
            values[algo] = NumpyForward(topology.learner.network, topology.learner.weights())(views)["logits"]
    unseen, seen = ({algo: table[:, action] for algo, table in values.items()} for action in (0, 1))
    assert (unseen["cql"] < unseen["dqn"]).all()
    assert (seen["cql"] > unseen["cql"] + 0.5).all()


@pytest.mark.parametrize("algo", ["bc", "cql", "iql"])
def test_what_is_illegal_neither_costs_nor_counts(algo):
    algorithm = open_algorithm(algo)
    learner = algorithm.begin(spec_of("connect-four"), settings_of(algorithm, {"image_layers": ["flat"]}), 0)
    board = {"observation/board": np.zeros((3, 2, 6, 7), np.uint8)}
    only = np.zeros((3, 7), bool)
    only[:, 2] = True
    batch = Batch(
        observation=board,
        action=np.full(3, 2, np.int32),
        reward=np.zeros(3, np.float32),
        ending=np.ones(3, np.uint8),
        next_observation=board,
        legal=only,
        next_legal=only,
        n_steps=np.ones(3, np.int32),
    )
    metrics = algorithm.update(learner, batch).metrics
    name = {"bc": "loss", "cql": "penalty", "iql": "policy_loss"}[algo]
    assert metrics[name] == pytest.approx(0.0, abs=1e-5)


def test_a_store_larger_than_the_table_is_held_whole_and_every_step_weighs_the_same(config):
    record(config, open_game("cartpole", 16), [script("cartpole", "balance")], 4)  # 500 steps each
    record(config, open_game("cartpole", 16), [script("cartpole", "random")], 40)  # some twenty each
    small = replace(config, replay=replace(config.replay, capacity_steps=1000, min_steps=10))
    with open_store(config.store_url) as store:
        held = store.stats("cartpole").steps
        topology = build(plan(TrainRequest("cartpole", "bc", "store", settings=("hidden_units=[8]",)), small), store)
        topology.iterate()
        assert topology.table.steps == held
        saved = topology.save()
        record(config, open_game("cartpole", 16), [script("cartpole", "random")], 10)
        again = build(plan(TrainRequest("cartpole", "bc", "store", settings=("hidden_units=[8]",)), small), store)
        again.load(saved)
        assert again.table.steps == held
        assert (again.iterate().batch.reward == topology.iterate().batch.reward).all()


class Numbers(Scripted):
    """As `Scripted`, for boxes."""

    def act(self, seat, observation, legal, rng):
        return self._act(observation["observation/way"], rng).astype(np.float32)


def near(way, rng):
    """Where to step is 1 + way; half of the players know the first number, and add chance to both."""
    knows = rng.random((len(way), 1)) < 0.5
    return np.clip(np.where(knows, 1 + way, 0.2) + rng.normal(0, 0.5, way.shape), -1, 3)


FALLING = ("learning_rate=0.005", "schedule=linear", "schedule_steps=76800")  # 600 updates of 128
BOX = {
    "bc": FALLING,
    "cql": (*FALLING, "conservatism=0.2", "target_rate=0.05", "sampled_actions=4"),
    "iql": (*FALLING, "target_rate=0.1", "expectile=0.8"),
}


@pytest.mark.slow
def test_boxes_are_learned_from_records_and_rewards_make_them_better(config):
    record(config, reach(64), [Numbers(near)], 1500)
    earned = {}
    with open_store(config.store_url) as store:
        recorded = np.mean([chunk.columns["reward"].sum() for chunk in store.read(Query(REACH.id))])
        for algo, settings in BOX.items():
            request = TrainRequest(
                REACH.id, algo, "store", settings=("hidden_units=[32]", "batch_steps=128", *settings)
            )
            topology = build(plan(request, config), store)
            for _ in range(600):
                topology.iterate()
            forward = NumpyForward(topology.learner.network, topology.learner.weights())
            earned[algo] = evaluate(REACH.id, forward, episodes=200, seed=1).mean
    assert earned["bc"] > recorded + 0.1
    assert earned["cql"] > earned["bc"] + 0.1
    assert earned["iql"] > earned["bc"] + 0.1


def test_a_box_learner_goes_into_bytes_and_goes_on_as_if_nothing_had_happened():
    rng = np.random.default_rng(0)
    batch = Batch(
        observation={"observation/way": rng.random((8, 2), np.float32)},
        action=rng.random((8, 2), np.float32),
        reward=rng.random(8, np.float32),
        ending=np.zeros(8, np.uint8),
        next_observation={"observation/way": rng.random((8, 2), np.float32)},
        n_steps=np.ones(8, np.int32),
    )
    for algo in BOX:
        algorithm = open_algorithm(algo)
        settings = settings_of(algorithm, {"hidden_units": [8]})
        first, second = (algorithm.begin(REACH, settings, seed) for seed in (1, 2))
        algorithm.update(first, batch)
        second.load(first.save())
        after = [algorithm.update(learner, batch).learner.save() for learner in (first, second)]
        assert after[0] == after[1]


def test_a_critic_of_boxes_sees_the_action_scaled_by_its_bounds():
    seat = REACH.seats[0]
    spec = critic_spec(default_network(seat, heads=critic_heads(seat.action)), seat.action)
    assert (spec.inputs[-1].shift, spec.inputs[-1].scale) == (1.0, 0.5)
    critic = Critics(spec, 0).online[0]
    seen, actions = {"observation/way": torch.rand(3, 2)}, torch.rand(3, 5, 2)
    many = values_of_many(critic, seen, actions)
    assert torch.allclose(many[:, 4], value_of(critic, seen, actions[:, 4]), atol=1e-6)
    assert not torch.allclose(many[:, 4], many[:, 3])


def test_the_expectile_of_a_sample_lies_where_its_loss_is_least():
    sample = torch.tensor([0.0, 1.0, 2.0, 10.0])
    places = torch.linspace(0, 10, 1001)
    mean = places[torch.stack([expectile_loss(sample - at, 0.5).mean() for at in places]).argmin()]
    upper = places[torch.stack([expectile_loss(sample - at, 0.9).mean() for at in places]).argmin()]
    assert mean == pytest.approx(3.25, abs=0.01)
    assert mean < upper < 10


SENTENCES = [
    (
        TrainRequest("cartpole", "cql"),
        "--from sim: cql learns from what others played, and nothing else. "
        "Use `spar train cartpole --algo cql --from store`.",
    ),
    (
        TrainRequest("cartpole", "bc", "mix"),
        "--from mix: bc learns from what others played, and nothing else. "
        "Use `spar train cartpole --algo bc --from store`.",
    ),
    (
        TrainRequest("cartpole", "bc", "store", settings=("label_smoothing=1.0",)),
        "[bc]: label_smoothing = 1.0",
    ),
    (
        TrainRequest("cartpole", "cql", "store", settings=("conservatism=-1.0",)),
        "[cql]: conservatism = -1.0",
    ),
    (TrainRequest("cartpole", "iql", "store", settings=("expectile=1.0",)), "[iql]: expectile = 1.0"),
    (TrainRequest("cartpole", "iql", "store", settings=("n_steps=0",)), "[iql]: n_steps = 0"),
]


@pytest.mark.parametrize(("asked", "sentence"), SENTENCES, ids=lambda value: str(value)[:30])
def test_what_cannot_be_is_said(asked, sentence, config):
    with pytest.raises(ConfigError) as error:
        plan(asked, config)
    assert str(error.value).startswith(sentence)


def test_the_store_is_the_only_source_of_the_chain(config):
    assert open_algorithm("iql").feeds == "records"
    assert plan(TrainRequest(SPEC.id, "iql", "store"), config).topology == "offline"
