"""A user's own Gymnasium environments: copies of objects, names of games, and answers that do not suit."""

import functools
import logging
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit, TransformReward

from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.games.gymnasium import MOST_TICKS, from_factory, register

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Box2D's import dies of them as errors
CARTPOLE = "CartPole-v1"


class Walk(gymnasium.Env):
    """Counts its steps; without an end of its own."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.place = 0.0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place += 1.0
        return self.seen(), self.reward(), False, False, {}

    def seen(self):
        return np.array([self.place], np.float32)

    def reward(self):
        return 1.0


class LaterOfAnotherShape(Walk):
    def seen(self):
        return np.zeros(1 + (self.place > 1), np.float32)


class LaterNotFinite(Walk):
    def seen(self):
        return np.array([np.nan if self.place > 1 else 0.0], np.float32)


class LaterText(Walk):
    def reward(self):
        return "much" if self.place > 1 else 1.0


class LaterFour(Walk):
    def step(self, action):
        stepped = super().step(action)
        return stepped[: 4 if self.place > 1 else 5]


class TakesOptions(Walk):
    def reset(self, **options):
        assert "seed" in options
        return super().reset(seed=options["seed"])


class Shifted(gymnasium.ObservationWrapper):
    """A wrapper of a user's own, which Gymnasium cannot make from a spec."""

    def observation(self, observation):
        return observation + 100


def first_view(game_id, n=2):
    game = open_game(game_id, n)
    return game, game.reset(np.arange(n, dtype=np.uint64), np.ones(n, bool))


@pytest.mark.parametrize("name", [CARTPOLE, "LunarLander-v3", "Taxi-v3"])
def test_an_object_as_registered_is_played_by_its_id(name):
    assert register(gymnasium.make(name)) == f"gym:{name}"


def test_an_object_is_played_as_it_was_changed():
    short = register(gymnasium.make(CARTPOLE, max_episode_steps=30))
    assert first_view(short)[0].spec.max_ticks == 30
    env = gymnasium.make(CARTPOLE)
    env.unwrapped.x_threshold = 1e-9
    game, _ = first_view(register(env))
    assert game.step([np.zeros(2, np.int32)]).over.all()


def test_an_object_in_a_wrapper_of_ones_own_is_copied():
    _, view = first_view(register(Shifted(gymnasium.make(CARTPOLE))))
    assert (view.observation[0]["observation/state"] > 99).all()


def test_an_object_that_cannot_be_copied_is_made_by_its_spec():
    game, _ = first_view(register(gymnasium.make("LunarLander-v3", gravity=-5.0)))
    assert [env.unwrapped.gravity for env in game._envs] == [-5.0, -5.0]


def test_what_differs_has_names_that_differ():
    def made():
        return Walk()

    given = [
        *(TransformReward(gymnasium.make(CARTPOLE), lambda reward, times=times: reward * times) for times in (10, 11)),
        *(TimeLimit(gymnasium.make(CARTPOLE).unwrapped, ticks) for ticks in (20, 30)),
        *(functools.partial(gymnasium.make, CARTPOLE, max_episode_steps=ticks) for ticks in (20, 30)),
        lambda: Walk(),
        lambda: TimeLimit(Walk(), 3),
        made,
        Walk,
    ]
    names = [register(one) for one in given]
    assert len(set(names)) == len(names)
    assert names == [register(one) for one in given]
    assert names[-2:] == ["gym:python/made", "gym:python/Walk"]


def test_an_environment_without_a_limit_is_cut_short_and_that_is_said_once(caplog):
    caplog.set_level(logging.WARNING)
    name = register(functools.partial(TransformReward, Walk(), abs))
    for _ in range(2):
        assert first_view(name)[0].spec.max_ticks == MOST_TICKS
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith(f"{name} sets no limit to an episode: it is cut short after 10,000 steps")
    assert first_view(register(lambda: TimeLimit(Walk(), 7)))[0].spec.max_ticks == 7


def test_a_reset_may_take_its_seed_among_others():
    first_view(register(TakesOptions))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (LaterOfAnotherShape, "its step gives an observation of shape (2,). Return (1,), or declare another"),
        (LaterNotFinite, "its observation/state has a number that is not finite. Give finite observations"),
        (LaterText, "its step gives the reward 'much'. Return a number"),
        (LaterFour, "its step gives no five values. Return observation, reward, terminated, truncated, info"),
    ],
)
def test_an_answer_that_does_not_suit_is_told_whenever_it_comes(kind, sentence):
    game = from_factory(kind, "gym:python/Wrong", 2)
    with pytest.raises(ConfigError) as told:  # noqa: PT012
        game.reset(np.arange(2, dtype=np.uint64), np.ones(2, bool))
        for _ in range(3):
            game.step([np.zeros(2, np.int32)])
    assert f"game 'gym:python/Wrong': {sentence}" in str(told.value)


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (gymnasium.spaces.Dict({}), "observation is an empty space"),
        (gymnasium.spaces.Graph(gymnasium.spaces.Box(0, 1, (1,)), None), "observation/state is a Graph space"),
    ],
)
def test_spaces_that_cannot_be_learned_from_are_refused_before_anything_is_played(space, sentence):
    made = type("Odd", (Walk,), {"observation_space": space})
    with pytest.raises(ConfigError, match=sentence):
        from_factory(made, "gym:python/Odd", 1)


def test_a_registered_environment_of_ones_own_is_checked_too(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n\nclass Old(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 1, (1,))\n    action_space = gymnasium.spaces.Discrete(2)\n\n"
        "    def reset(self, *, seed=None, options=None):\n        return [0.0], {}\n\n"
        "    def step(self, action):\n        return [0.0], 1.0, False, {}\n\n"
        "gymnasium.register('Old-v0', Old)\n"
    )
    words = [sys.executable, "-m", "sparring", "train", "gym:mine:Old-v0", "--steps", "100", "--data", "data"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 1
    assert "its step gives no five values. Return observation, reward, terminated, truncated, info" in done.stderr
    assert "fault in Sparring" not in done.stderr
