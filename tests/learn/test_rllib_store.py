"""Ray tasks read the store's records: each step once, for any number of tasks; RLlib's algorithms learn from them."""

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace
from reach_game import reach

from sparring.acting.evaluate import evaluate
from sparring.errors import Missing, StoreFailed
from sparring.games.catalogue import open_game
from sparring.games.scripts import play, script
from sparring.learn.offline.parallel_store import ParallelStore
from sparring.learn.offline.records import consecutive
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # RLlib warns of itself; Ray starts slowly


@pytest.fixture(scope="module", autouse=True)
def ray_of_our_own():
    """One for all tests here: starting it takes longer than they do."""
    from sparring.hosts.ray.cluster import Cluster

    cluster = Cluster("ray://local")
    yield
    cluster.close()


class Aiming:
    """Steps onto the point, a little beside it."""

    name = "aiming"

    def act(self, seat, observation, legal, rng):
        way = observation["observation/way"]
        return np.clip(1 + way + rng.normal(scale=0.1, size=way.shape), -1, 3).astype(np.float32)


def silent(progress):
    pass


def record(config, game, player, episodes):
    with open_store(config.store_url) as store:
        for chunks in play(
            game, [player] * len(game.spec.seats), list(range(episodes)), np.random.default_rng(5), "play"
        ):
            store.append(chunks)


def steps_of(chunks):
    """Every step as a hashable thing, with where it belongs."""
    return [
        (chunk.header.episode, chunk.header.seat, chunk.header.first_step + step, bytes(column[step].tobytes()))
        for chunk in chunks
        for column in (chunk.columns["observation/state"],)
        for step in range(chunk.header.steps)
    ]


def test_any_number_of_readers_gives_the_same_steps_in_the_same_order(config):
    from sparring.learn.offline.parallel_store import read_in_parallel

    record(config, open_game("cartpole", 8), script("cartpole", "balance"), 20)
    query = Query(GameId("cartpole"))
    with open_store(config.store_url) as store:
        alone = steps_of(store.read(query))
        shared = [steps_of(read_in_parallel(store, config.store_url, query, parts)) for parts in (1, 3)]
    assert Counter(shared[0]) == Counter(alone)
    assert len(alone) == 20 * 500
    assert shared[0] == shared[1]


def test_our_own_algorithm_learns_the_same_however_many_read(config, monkeypatch):
    record(config, open_game("cartpole", 8), script("cartpole", "balance"), 12)
    agreed = plan(TrainRequest("cartpole", "bc", "store", on="ray://auto", seed=3), config)
    assert (agreed.topology, agreed.on) == ("offline", "ray://auto")
    found = []
    for parts in (2, 5):
        monkeypatch.setattr("sparring.learn.offline.parallel_store.PARTS", (parts, parts))
        with open_store(config.store_url) as store:
            topology = build(agreed, ParallelStore(store, config.store_url, agreed.on))
            for _ in range(5):
                topology.iterate()
            assert topology.sources().steps == {"play": 12 * 500}
            found.append(topology.learner.weights())
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value)


def test_batches_for_rllib_hold_each_step_with_what_followed_it(config):
    from sparring.learn.rllib.topology import StoreRecords, fit_game

    record(config, open_game("cartpole", 4), script("cartpole", "random"), 6)
    agreed = plan(TrainRequest("cartpole", "rllib:BC", "store", settings=("gamma=0.5",)), config)
    fit = fit_game(agreed)
    with open_store(config.store_url) as store:
        chunks = list(store.read(Query(agreed.spec.id)))
    for run in consecutive(chunks):
        records = StoreRecords([run], fit.observation, fit.actions, agreed)
        rows = records.batch(10_000).policy_batches["default_policy"]
        views = np.concatenate([chunk.columns["observation/state"] for chunk in run])
        order = [int(np.flatnonzero((views == one).all(axis=1))[0]) for one in rows["obs"][:, :4]]
        assert sorted(order) == list(range(len(views)))
        back = np.argsort(order)
        np.testing.assert_array_equal(rows["new_obs"][back][:-1, :4], views[1:])
        assert rows["terminateds"][back].tolist() == [False] * (len(views) - 1) + [True]
        assert rows["value_targets"][back][-2:].tolist() == [1.5, 1.0]
    last = chunks[-1]
    columns = {name: column for name, column in last.columns.items() if not name.startswith("final_")}
    open_ended = Chunk(replace(last.header, ending="running"), columns)
    assert len(StoreRecords([[open_ended]], fit.observation, fit.actions, agreed).rows) == last.header.steps - 1


def test_bc_of_rllib_imitates_a_script(config):
    record(config, open_game("cartpole", 16), script("cartpole", "balance"), 30)
    words = ("lr=0.003", "train_batch_size_per_learner=1024")
    result = train(
        TrainRequest("cartpole", "rllib:BC", "store", steps=100_000, settings=words), TrainOptions(), config, silent
    )
    assert (result.env_steps, result.plan.topology) == (0, "rllib")
    assert result.position >= 100_000
    assert result.published.evaluation.mean > 300
    again = train(
        TrainRequest("cartpole", "rllib:BC", "store", steps=110_000), TrainOptions(resume=result.run), config, silent
    )
    assert again.position >= 110_000
    assert again.published.evaluation.mean > 300


def test_marwil_of_rllib_learns_from_whole_episodes_of_a_game_with_masks(config):
    record(config, open_game("connect-four", 8), script("connect-four", "tactical"), 20)
    words = ("train_batch_size_per_learner=128", "lr=0.001")
    result = train(
        TrainRequest("connect-four", "rllib:MARWIL", "store", steps=2_000, settings=words),
        TrainOptions(),
        config,
        silent,
    )
    with open_store(config.store_url) as store:
        assert result.published.model
        assert store.stats(GameId("connect-four")).steps > 0


@pytest.mark.parametrize("algo", ["rllib:CQL", "rllib:IQL", "rllib:BC"])
def test_numbers_are_learned_from_records(config, algo):
    record(config, reach(16), Aiming(), 600)
    words = {
        "rllib:CQL": ("hidden_units=[32]", "train_batch_size_per_learner=256", "bc_iters=1000", "actor_lr=0.01"),
        "rllib:IQL": ("hidden_units=[32]", "train_batch_size_per_learner=256", "actor_lr=0.01"),
        "rllib:BC": ("hidden_units=[32]", "train_batch_size_per_learner=256", "lr=0.01"),
    }[algo]
    agreed = plan(TrainRequest("reach_game:reach", algo, "store", settings=words), config)
    with open_store(config.store_url) as store:
        topology = build(agreed, ParallelStore(store, config.store_url, "local://"))
        try:
            for _ in range(100):
                topology.iterate()
            forward = NumpyForward(topology.learner.network, topology.learner.weights())
            assert topology.sources().steps == {"play": 600}
        finally:
            topology.close()
    chance = evaluate("reach_game:reach", "random", episodes=50, seed=0).mean
    assert evaluate("reach_game:reach", forward, episodes=50, seed=0).mean > chance / 2


def test_an_empty_store_says_how_to_fill_it(config):
    open_store(config.store_url).close()
    with pytest.raises(Missing, match="spar collect cartpole"):
        train(TrainRequest("cartpole", "rllib:BC", "store"), TrainOptions(), config, silent)


def test_a_node_without_the_file_is_named(config, tmp_path):
    from sparring.learn.offline.parallel_store import read_in_parallel

    record(config, open_game("cartpole", 2), script("cartpole", "random"), 2)
    with open_store(config.store_url) as store, pytest.raises(StoreFailed, match="every node"):
        list(read_in_parallel(store, f"sqlite:///{tmp_path}/nowhere.db", Query(GameId("cartpole")), 2))
