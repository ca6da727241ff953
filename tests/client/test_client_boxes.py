"""A trained Gaussian model from training to play: published, served, acting in the game's own units, and recorded."""

import json
import os
import subprocess
import sys

import httpx
import numpy as np
import pytest

pytest.importorskip("gymnasium")

from serving import serving
from sparring.config import load
from sparring.games.catalogue import open_game, spec_of
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.train import TrainOptions, train
from sparring.nets.chooser import ActRequest, Chooser
from sparring.nets.model_files import read_weights
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import squashed
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.ids import GameId

GAME = "gym:Pendulum-v1"
SEAT = spec_of(GAME).seats[0]
STATE = "observation/state"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder in which PPO has trained for a moment."""
    folder = tmp_path_factory.mktemp("boxes") / "data"
    config = load(None, (f"data={folder}", "registry.gate_episodes=4"))
    wish = TrainRequest(GAME, "ppo", steps=2_000, envs=4, settings=("hidden_units=[16]", "learning_rate=0.05"))
    done = train(wish, TrainOptions(), config, lambda progress: None)
    assert done.published.evaluation.mean < 0
    with open_registry(config.registry_url) as registry:
        by_hand = Evidence(episodes=1, mean=0.0, sd=0.0, by="operator", reason="it need not be good")
        registry.promote(GameId(GAME), done.published.model, by_hand)
    return folder


@pytest.fixture(scope="module")
def server(data):
    with serving(data, "--set", f'games=["{GAME}"]') as running:
        yield running


@pytest.fixture(scope="module")
def model(data):
    registry = open_registry(f"file://{data / 'models'}")
    return registry.fetch(registry.ids()[0])


def means(model, rows):
    """What the network itself would do, in the game's own units."""
    out = NumpyForward(model.card.network, read_weights(model))({STATE: rows})
    return squashed(out["mean"], (-2.0, 2.0))


def views(count, seed=0):
    angle = np.random.default_rng(seed).uniform(-3, 3, count)
    return np.stack([np.cos(angle), np.sin(angle), angle], axis=1).astype(np.float32)


def spar(data, *words):
    command = [sys.executable, "-m", "sparring", *words, "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=data, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_card_says_gaussian_and_bounds_and_both_commands_take_it(data, model):
    assert model.card.policy == "gaussian"
    assert next(head for head in model.card.network.heads if head.name == "mean").bounds == (-2.0, 2.0)
    said = spar(data, "evaluate", f"champion:{GAME}", "--episodes", "3", "--data", str(data))
    assert -2_000 < said["return_mean"] < 0
    assert spar(data, "models", "verify", "--data", str(data))


@pytest.mark.parametrize("act", ["local", "server"])
def test_an_episode_does_the_mean_and_every_step_is_stored(server, connect, model, act):
    connection = connect(server.url, GAME, act=act, act_timeout_s=10.0, timeout_s=10.0)
    if act == "local":
        assert connection.wait_for_model() == model.id
    game, rows, actions = open_game(GAME, 1), [], []
    view = game.reset(np.array([5], np.uint64), np.ones(1, bool))
    with connection.episode() as episode:
        while not view.over.any():
            seen = view.observation[0][STATE][0]
            action = np.asarray(episode.act(seen), np.float32)
            assert action.shape == (1,)
            view = game.step([action[None]])
            episode.record(seen, action, float(view.reward[0, 0]))
            rows.append(seen)
            actions.append(action)
        episode.end(view.observation[0][STATE][0], terminated=False)
    np.testing.assert_allclose(actions, means(model, np.stack(rows)), atol=1e-4)
    assert np.abs(actions).max() <= 2.0
    assert connection.flush(30)
    with open_store(f"sqlite:///{server.data / 'experience.db'}") as store:
        chunks = [one for one in store.read(Query(game=GAME)) if one.header.episode == episode.id]
    assert {chunk.header.actor for chunk in chunks} == {f"model:{model.id}"}
    kept = np.concatenate([chunk.columns["action"] for chunk in sorted(chunks, key=lambda one: one.header.first_step)])
    np.testing.assert_array_equal(kept, np.stack(actions))


@pytest.mark.slow
def test_mock_players_collect_with_the_model(server, data, model):
    words = ("--clients", "2", "--episodes", "2", "--skills", "model,random", "--folder", str(data / "clients"))
    said = spar(data, "collect", GAME, *words, "--to", server.url)
    assert said["episodes"] == 2
    assert said["steps"] == 400
    with open_store(f"sqlite:///{server.data / 'experience.db'}") as store:
        actors = {chunk.header.actor for chunk in store.read(Query(game=GAME)) if chunk.header.source == "collect"}
    assert actors == {f"model:{model.id}", "script:random"}


def test_strength_mixes_the_mean_with_chance_on_both_sides(server, model):
    row = views(1)[0]
    mean = float(means(model, row[None])[0, 0])
    chooser, rng = Chooser(model), np.random.default_rng(0)
    chooser.check(SEAT)
    local = np.array([chooser.decide(SEAT, ActRequest({STATE: row}, strength=0.5), rng).action[0] for _ in range(120)])
    body = {"observation": {"state": row.tolist()}, "strength": 0.5}
    with httpx.Client(base_url=server.url, trust_env=False) as http:
        served = np.array([http.post(f"/v1/games/{GAME}/act", json=body).json()["action"][0] for _ in range(120)])
    for done in (local, served):
        best = np.abs(done - mean) < 1e-4
        assert 0.35 < best.mean() < 0.65
        assert np.abs(done).max() <= 2.0
        assert done[~best].std() > 0.7, "the others are drawn between the bounds"
