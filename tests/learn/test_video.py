"""Videos of evaluations: real files, decoded again, with a picture for every start and every step."""

from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
from PIL import Image, ImageSequence

import sparring
from sparring.acting.evaluate import evaluate
from sparring.cli import main
from sparring.errors import ConfigError, Missing
from sparring.games.pictures import open_rendered

GAMES = [
    ("cartpole", "random", 3),
    ("connect-four", "tactical", 2),
    ("gym:CartPole-v1", "random", 2),
    ("pz:tictactoe_v3", "random", 2),
]


@pytest.mark.parametrize(("game", "player", "episodes"), GAMES, ids=[game for game, *_ in GAMES])
@pytest.mark.filterwarnings("default")  # of the libraries about themselves
def test_every_start_and_every_step_is_one_picture(game, player, episodes, tmp_path):
    file = tmp_path / "x.mp4"
    steps = 0
    played, draw, _ = open_rendered(game)
    step = type(played).step

    def counted(self, actions):
        nonlocal steps
        steps += 1
        return step(self, actions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(played), "step", counted)
        result = evaluate(game, player, episodes=episodes, seed=3, video=file)
    pictures = imageio.imread(file, plugin="FFMPEG")
    assert len(pictures) == steps + episodes
    assert len(result.returns) == episodes
    shown = draw(played.reset(np.array([5], np.uint64), np.ones(1, bool)))
    assert pictures[0].shape == (shown.shape[0] // 2 * 2, shown.shape[1] // 2 * 2, 3)
    assert not np.array_equal(pictures[0], pictures[-1])


def test_a_cart_stands_where_the_game_says(tmp_path):
    game, draw, frames_per_s = open_rendered("cartpole")
    view = game.reset(np.array([1], np.uint64), np.ones(1, bool))
    for _ in range(8):
        view = game.step([np.array([1])])
    dark = (draw(view) == (40, 40, 40)).all(axis=2).sum(axis=0)
    cart = np.flatnonzero(dark > 10)
    position = float(view.observation[0]["observation/state"][0, 0])
    assert position > 0
    assert abs(cart.mean() - (240 + position * 480 / 5.8)) < 1
    assert frames_per_s == 50


def test_the_command_and_python_write_a_gif(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "script:cartpole/random", "--video", "a.gif"]) == 0
    said = capsys.readouterr().out
    assert "in 1 episodes" in said
    assert "filmed into a.gif" in said
    length = int(sparring.evaluate("script:cartpole/random", video="b.gif").returns[0])
    for file in ("a.gif", "b.gif"):  # pictures that are alike are one, shown for longer
        with Image.open(file) as picture:
            shown_ms = [frame.info["duration"] for frame in ImageSequence.Iterator(picture)]
        assert sum(shown_ms) == 20 * (length + 1)


def test_what_cannot_be_filmed_is_said_before_a_game_is_played(tmp_path):
    with pytest.raises(ConfigError) as wrong:
        evaluate("cartpole", "random", episodes=1, seed=0, video=tmp_path / "x.avi")
    assert str(wrong.value) == (
        f"{tmp_path / 'x.avi'}: no video can be written as 'x.avi'. "
        "End its name with .mp4 or .gif, in a folder that exists."
    )
    pytest.importorskip("pyspiel")
    with pytest.raises(ConfigError) as hidden:
        evaluate("spiel:kuhn_poker", "random", episodes=1, seed=0, video=tmp_path / "x.mp4")
    assert str(hidden.value) == (
        "game 'spiel:kuhn_poker': it draws no pictures. "
        'Use an environment with render_mode="rgb_array", atari:GAME, cartpole, connect-four or duel.'
    )
    assert not (tmp_path / "x.mp4").exists()


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "imageio", None)
    with pytest.raises(Missing) as missing:
        evaluate("cartpole", "random", episodes=1, seed=0, video=Path(tmp_path) / "x.mp4")
    assert str(missing.value) == (
        "--video: the package imageio is not installed. Install it: pip install 'sparring[video]'."
    )


@pytest.mark.slow
@pytest.mark.parametrize("game", ["duel", "atari:Pong(lives=one)", "gym:LunarLander-v3", "pz:cooperative_pong_v6"])
@pytest.mark.filterwarnings("default")  # of the libraries about themselves
def test_other_games_are_filmed_too(game, tmp_path):
    evaluate(game, "random", episodes=1, seed=0, video=tmp_path / "x.mp4")
    assert len(imageio.imread(tmp_path / "x.mp4", plugin="FFMPEG")) > 20
