"""Evaluation: exactly so many episodes, fair to both seats, the same for the same seed."""

import json
import subprocess
import sys

import numpy as np
import pytest

from sparring.acting.evaluate import evaluate, games_at_once
from sparring.acting.players import named
from sparring.acting.return_histogram import lines, summary
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import open_game, spec_of
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.nets.model_files import make_model
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.shapes import parameters
from sparring.nets.torch_network import default_network
from sparring.registry import open_registry
from sparring.wire.model import Lineage
from sparring.wire.network import Gru, Lstm


def forward_for(game, seed=0):
    algorithm = open_algorithm("ppo")
    learner = algorithm.begin(
        spec_of(game), settings_of(algorithm, {"image_layers": ["flat"], "hidden_units": [16]}), seed
    )
    return NumpyForward(learner.network, learner.weights()), learner


def model_for(game, seed=0):
    forward, learner = forward_for(game, seed)
    lineage = Lineage(algorithm="ppo", config={}, steps={})
    return make_model(spec_of(game), forward.spec, learner.weights(), "categorical", lineage, 0)


@pytest.mark.parametrize("episodes", [1, 7, 64, 150])
def test_exactly_so_many_episodes_are_played_to_their_end(episodes):
    played = evaluate("cartpole", "random", episodes=episodes, seed=3)
    assert len(played.returns) == episodes
    assert (played.returns >= 8).all()  # no pole falls faster
    assert played.wins is None
    assert played.score is None


def test_short_episodes_are_not_preferred():
    few, many = (evaluate("cartpole", "random", episodes=n, seed=3).mean for n in (64, 640))
    assert few == pytest.approx(many, rel=0.3)


def test_the_same_seed_plays_the_same_games_and_another_seed_others():
    forward, _ = forward_for("cartpole")
    first, second, other = (evaluate("cartpole", forward, episodes=30, seed=seed).returns for seed in (1, 1, 2))
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize(("game", "most"), [("connect-four", 4096), ("spiel:tic_tac_toe", 4096), ("duel", 64)])
def test_two_networks_play_the_same_games_however_many_are_played_at_once(game, most, monkeypatch):
    one, other = (model_for(game, seed) for seed in (1, 2))
    assert games_at_once(game, one, other) == most
    assert games_at_once(game, one, "random") == games_at_once(game, one, None) == 64  # a script draws in their order
    many = evaluate(game, one, episodes=90, seed=5, against=other)
    monkeypatch.setattr("sparring.acting.evaluate.MAX_GAMES", 7)
    monkeypatch.setattr("sparring.acting.evaluate.MAX_SHORT_GAMES", 7)
    few = evaluate(game, one, episodes=90, seed=5, against=other)
    assert (many.digests == few.digests).all()
    assert (many.returns == few.returns).all()
    assert (many.ticks, many.wins, many.draws) == (few.ticks, few.wins, few.draws)


@pytest.mark.parametrize("memory", [Gru(6), Lstm(6)])
def test_a_network_remembers_its_own_episode_and_nothing_of_the_one_before(memory):
    game = open_game("cartpole", 1)
    spec = default_network(game.spec.seats[0], hidden=(8,), memory=memory)
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(0, 0.8, shape).astype(np.float32) for name, shape in parameters(spec).items()}
    forward = NumpyForward(spec, weights)
    played = evaluate("cartpole", forward, episodes=150, seed=4)  # more than are played at once
    seeds = np.random.default_rng([4, 0]).integers(0, 2**64, 150, dtype=np.uint64)
    for episode in (0, 63, 64, 149):
        view, state, ticks = game.reset(seeds[episode : episode + 1], np.ones(1, bool)), None, 0
        while not view.over[0]:
            out = forward(view.observation[0], state)
            state, ticks = out["state"], ticks + 1
            view = game.step([out["logits"].argmax(axis=1).astype(np.int32)])
        assert played.returns[episode] == ticks


def test_a_script_that_knows_the_game_wins_and_wins_draws_and_losses_add_up():
    played = evaluate("connect-four", "tactical", episodes=60, seed=0)
    assert played.wins + played.draws + played.losses == 60
    assert played.score > 0.85
    assert played.mean == pytest.approx((played.wins - played.losses) / 60)


@pytest.mark.parametrize("game", ["connect-four", "duel"])
def test_a_model_scores_exactly_half_against_itself(game):
    forward, _ = forward_for(game)
    played = evaluate(game, forward, episodes=20, seed=0, against=forward)
    assert played.score == 0.5


def test_two_models_do_not_play_the_same_game_again_and_again():
    one, two = forward_for("connect-four", 0)[0], forward_for("connect-four", 1)[0]
    played = evaluate("connect-four", one, episodes=100, seed=0, against=two)
    assert 0 < played.wins < 100


def test_a_model_of_another_game_is_refused():
    with pytest.raises(ConfigError, match="it was made for duel with spec"):
        evaluate("cartpole", model_for("duel"), episodes=1, seed=0)
    with pytest.raises(ConfigError, match="evaluation: 0 episodes"):
        evaluate("cartpole", "random", episodes=0, seed=0)


def test_players_are_found_by_name(tmp_path):
    with open_registry(f"file://{tmp_path}/models") as registry:
        model = model_for("cartpole")
        registry.publish(model)
        assert named(model.id[:8], registry).player.id == model.id
        assert named(model.id, registry).game == "cartpole"
        assert named("script:connect-four/tactical", registry).game == "connect-four"
        assert named("tracker", registry, "duel").name == "script:duel/tracker"
        assert named("script:tracker", registry, "duel") == named("tracker", registry, "duel")
        with pytest.raises(Missing, match="cartpole has no champion yet"):
            named("champion:cartpole", registry)
        with pytest.raises(Missing, match="no model's id begins so"):
            named("0123abcd", registry)
        with pytest.raises(ConfigError, match="'hello' is no player"):
            named("hello", registry)
        with pytest.raises(ConfigError, match="names no game"):
            named("script:tactical", registry)
        with pytest.raises(Missing, match="Did you mean 'tactical'"):
            named("script:connect-four/tacticle", registry)


def test_a_distribution_is_drawn_in_text():
    returns = np.array([1.0, 1.0, 2.0, 10.0], np.float32)
    drawn = lines(returns)
    assert len(drawn) == 10
    assert drawn[0].endswith("█ 2") or drawn[0].endswith(" 3")
    assert summary(returns).quantiles["p50"] == 1.5
    assert len(lines(np.ones(5, np.float32))) == 1


def test_ranges_of_whole_returns_hold_equally_many_numbers_each():
    assert lines(np.array([-1, 1, 1], np.float32)) == [f"-1  {'█' * 24} 1", " 0   0", f" 1  {'█' * 48} 2"]
    even = [line.split()[-1] for line in lines(np.arange(60, dtype=np.float32))]
    assert even == ["6"] * 10
    assert len(lines(np.array([0.0, 0.5, 0.7], np.float32))) == 10


def spar(*words):
    done = subprocess.run([sys.executable, "-m", "sparring", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_command_prints_json_and_draws_a_picture(tmp_path):
    picture = tmp_path / "returns.svg"
    words = ("evaluate", "script:connect-four/tactical", "--episodes", "20", "--plot", str(picture), "--json")
    code, out, err = spar(*words, "--data", str(tmp_path))
    said = json.loads(out)
    assert code == 0, err
    assert len(said["returns"]) == said["episodes"] == 20
    assert said["wins"] + said["draws"] + said["losses"] == 20
    assert said["against"] == "script:random"
    assert said["return_mean"] == pytest.approx(np.mean(said["returns"]))
    assert picture.read_text().lstrip().startswith("<?xml")
    code, _, err = spar("evaluate", "script:cartpole/random", "--plot", "returns.txt", "--data", str(tmp_path))
    assert code == 1
    assert "spar: --plot: 'returns.txt' is no picture. End its name in .png, .svg, .pdf." in err
