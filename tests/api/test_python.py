"""Sparring from Python: training, evaluation, models and environments, as docs/python.md promises them."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import sparring
from sparring import config as configs
from sparring.games.catalogue import open_game
from sparring.games.scripts import play, script
from sparring.store import open_store

with warnings.catch_warnings():  # of PettingZoo about itself
    warnings.simplefilter("ignore")
    from pettingzoo.test import api_test, parallel_api_test

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


class Walk(gymnasium.Env[Any, Any]):
    """Steps to the right earn one each; a walk has ten steps."""

    observation_space = gymnasium.spaces.Box(-20, 20, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = 0.0, 0
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 1 if action else -1
        self.steps += 1
        return np.array([self.place], np.float32), float(action), False, self.steps == 10, {}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_examples_of_the_page_run() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(compile(block, str(PAGE), "exec"), names)
    assert Path("learning.png").stat().st_size > 5_000


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, sparring; print([name for name in ('numpy', 'torch', 'gymnasium') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_model_predicts_without_torch() -> None:
    model = sparring.train("cartpole", steps=512, progress=False).model.id
    code = "import sys, sparring; sparring.load(sys.argv[1]).predict([0, 0, 0, 0]); print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def test_a_package_that_is_not_installed_is_named_with_its_extra() -> None:
    code = "import sys, sparring; sys.modules['gymnasium'] = None; sparring.make('cartpole')"  # as if it were not there
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert said.splitlines()[-1] == (
        "sparring.errors.Missing: this installation: the package 'gymnasium' is not installed. "
        "Run pip install 'sparring[games]'."
    )


DRAWN = ["cartpole", "connect-four", "duel", "gym:FrozenLake-v1", "gym:Taxi-v3", "gym:CartPole-v1"]


@pytest.mark.parametrize("game", [*DRAWN, "spiel:kuhn_poker"])
@pytest.mark.filterwarnings("ignore")
def test_gymnasium_accepts_our_games(game: str) -> None:
    check_env(sparring.make(game))


@pytest.mark.parametrize("game", DRAWN)
@pytest.mark.filterwarnings("ignore")
def test_gymnasium_accepts_our_games_with_pictures(game: str) -> None:
    env = sparring.make(game, render_mode="rgb_array")
    check_env(env)
    env.reset(seed=0)
    first = env.render()
    assert first.dtype == np.uint8
    env.step(env.action_space.sample(env.reset(seed=0)[1]["action_mask"]))
    assert (env.render() != first).any() or game == "gym:FrozenLake-v1"  # where one may slip into a wall


def test_a_vector_draws_each_game_and_plays_as_without_pictures() -> None:
    envs, plain = sparring.make("gym:Taxi-v3", n=3, render_mode="rgb_array"), sparring.make("gym:Taxi-v3", n=3)
    for one in (envs, plain):
        one.reset(seed=3)
    for _ in range(20):  # masked actions, too: Taxi answers them itself
        actions = envs.action_space.sample()
        np.testing.assert_array_equal(envs.step(actions)[0], plain.step(actions)[0])
    pictures = envs.render()
    assert len(pictures) == 3
    assert (pictures[0] != pictures[1]).any()


@pytest.mark.parametrize("game", ["connect-four", "spiel:kuhn_poker"])
@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_accepts_games_of_turns(game: str) -> None:
    api_test(sparring.make(game, api="pettingzoo"), num_cycles=100)


@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_accepts_games_in_which_seats_act_at_once() -> None:
    parallel_api_test(sparring.make("duel", api="pettingzoo"), num_cycles=100)


@pytest.mark.parametrize("game", ["cartpole", "connect-four"])
def test_a_vector_goes_on_with_the_next_episode_and_its_seed_decides_all(game: str) -> None:
    def played() -> list[Any]:
        envs, rng, seen = sparring.make(game, n=3), np.random.default_rng(0), []
        observation, info = envs.reset(seed=7)
        for _ in range(200):
            assert envs.observation_space.contains(observation)
            actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in info["action_mask"]])
            observation, reward, terminated, truncated, info = envs.step(actions)
            seen.append((observation, reward, terminated | truncated))
        return seen

    first, second = played(), played()
    ended = np.array([one[2] for one in first])
    assert (ended.sum(axis=0) >= 2).all(), "each game has ended and started again"
    assert not (ended[1:] & ended[:-1]).any(), "an episode has at least one step"
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_a_seat_is_told_of_a_loss_that_its_opponents_move_decided() -> None:
    env = sparring.make("connect-four", opponent="tactical", seat=1)
    losses = 0
    for seed in range(20):
        _, info = env.reset(seed=seed)
        ended, earned = False, 0.0
        while not ended:
            action = int(np.flatnonzero(info["action_mask"])[0])
            _, reward, terminated, truncated, info = env.step(action)
            earned, ended = earned + reward, terminated or truncated
        losses += earned < 0
    assert losses > 10


def test_an_environment_is_trained_as_class_object_and_function() -> None:
    for given in (Walk, Walk(), lambda: Walk()):
        run = sparring.train(given, steps=4096, progress=False, settings={"learning_rate": 1e-2})
        assert run.return_mean == pytest.approx(10.0)
        assert run.metrics["env_steps"][-1] >= 4096
        assert run.model.predict(np.array([0.0])) == 1
        assert run.model.predict(np.zeros((4, 1))).tolist() == [1, 1, 1, 1]


def test_minutes_begin_no_rollout_that_would_end_too_late() -> None:
    class Slow(Walk):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            time.sleep(0.05)
            return super().step(action)

    run = sparring.train(Slow, minutes=0.1, envs=2, settings={"rollout_ticks": 20}, progress=False)  # 2 s a rollout
    assert run.metrics["seconds"][-1] < 6 or run.result.updates == 1


def test_a_run_is_resumed_by_itself() -> None:
    first = sparring.train("cartpole", steps=512, promote=False, progress=False)
    again = sparring.train("cartpole", steps=1024, resume=first, promote=False, progress=False)
    assert (again.name, again.result.position) == (first.name, 1024)


def test_a_registered_environment_keeps_its_id() -> None:
    run = sparring.train(gymnasium.make("CartPole-v1"), steps=256, progress=False)
    assert run.result.plan.game == "gym:CartPole-v1"


class Changed(Walk):
    """A walk in which the attributes that are given replace its own."""

    def __init__(self, **changed: Any) -> None:
        for name, value in changed.items():
            setattr(self, name, value)


def test_wrong_arguments_are_refused_with_what_to_do() -> None:
    run = sparring.train("cartpole", steps=256, progress=False)
    model = run.model
    evaluated = sparring.evaluate(model, 2)
    train, sweep, evaluate, load, make, predict = (
        sparring.train,
        sparring.sweep,
        sparring.evaluate,
        sparring.load,
        sparring.make,
        model.predict,
    )
    four, unlike = make("connect-four"), lambda **changed: train(lambda: Changed(**changed), steps=64)
    for call, words in (
        (lambda: make("cartpole", api="openai"), "pettingzoo"),
        (lambda: make("cartpole", seat=1), "Count from 0 to 0"),
        (lambda: make("connect-four", api="pettingzoo", n=2), "Leave out n"),
        (lambda: make(None), "game = None. Give str."),
        (lambda: make("cartpole", n=2.5), "n = 2.5. Give int."),
        (lambda: make("cartpole", n=0), "Open at least one game"),
        (lambda: make("connect-four", n=0), "Open at least one game"),
        (lambda: make("cartpole", opponent="random"), "one seat, so there is no opponent. Leave out opponent"),
        (lambda: make("cartpol"), "Did you mean 'cartpole'?"),
        (lambda: make("connect-four", opponent="tactica"), "Did you mean 'tactical'?"),
        (lambda: make("connect-four", opponent=model), "Choose a model of connect-four"),
        (lambda: make("cartpole").step(0), "Call reset() before step()"),
        (lambda: make("cartpole").render(), "Use sparring.make(game, render_mode='rgb_array')"),
        (lambda: make("cartpole", render_mode="rgb_array").render(), "Call reset() before render()"),
        (lambda: make("cartpole", render_mode="human"), "Use 'rgb_array', and show or write the pictures"),
        (lambda: make("spiel:kuhn_poker", render_mode="rgb_array"), "it draws no pictures"),
        (lambda: make("connect-four", api="pettingzoo", render_mode="rgb_array"), "Leave out n, seat, opponent"),
        (lambda: (four.reset(), four.step("left")), "action array(['left']"),
        (lambda: (vector := make("cartpole", n=3)).reset(seed=[1, 2]) and vector, "Give one for each of 3"),
        (lambda: train(42), "Gymnasium environment"),
        (lambda: train("cartpole", seed=1.5), "sparring.train: seed = 1.5. Give int."),
        (lambda: train("cartpole", steps="many"), "steps = 'many'. Give int."),
        (lambda: train("cartpole", until="high"), "until = 'high'. Give float."),
        (lambda: train("cartpole", resume=3), "resume = 3. Give str or bool or Run."),
        (lambda: train("cartpole", promote=1), "promote = 1. Give bool."),
        (lambda: train("cartpole", steps=0), "sparring.train: envs 16, steps 0. Count both from 1."),
        (lambda: train("cartpole", minutes=0), "sparring.train: minutes 0"),
        (lambda: train("cartpole", minutes=float("nan")), "minutes nan. Give more than 0."),
        (lambda: train("cartpole", seed=1 << 63), "Count seeds from 0, in 63 bits"),
        (lambda: train("cartpole", "PPO"), "Did you mean 'ppo'?"),
        (lambda: train("cartpole", settings={"clip": None}), "clip = None"),
        (lambda: train("cartpole", data=__file__), "it is a file. Name a folder with data."),
        (lambda: train("cartpole", source="stor"), "source: there is no source 'stor'"),
        (lambda: train("cartpole", "bc"), "`sparring.train('cartpole', algo='bc', source='store')`"),
        (lambda: train("cartpole", source="store", topology="single"), "single does not go with source store"),
        (lambda: train("cartpole", resume=True, settings={"clip": 0.1}), "Leave out settings and envs"),
        (lambda: train("duel", resume=True), "Train without resume=True first"),
        (lambda: train("cartpole", config_set={"train.env": 1}), "config_set"),
        (lambda: train("cartpole", nodes="one"), "the line that `spar node --listen` or"),
        (lambda: sweep("cartpole", space=[1]), "space = [1]. Give Mapping."),
        (lambda: sweep("cartpole", space={}), "Name at least one setting"),
        (lambda: train("cartpole", settings=["epochs"]), "settings = ['epochs']. Give Mapping."),
        (lambda: train("cartpole", settings={"epochs": object}), "Give text, a number"),
        (lambda: train("cartpole", settings={"learning_rat": 1}), "Did you mean 'learning_rate'?"),
        (lambda: train("cartpole", data="/proc/none"), "/proc/none: the disk would not keep it"),
        (lambda: train(Walk, algo="impala", topology="async"), "gym:module:ID"),
        (lambda: train(lambda: "no environment"), "Return a gymnasium.Env"),
        (lambda: unlike(action_space=None), "it has no action_space"),
        (lambda: unlike(reset=lambda: np.zeros(1)), "Define reset(self, *, seed=None, options=None)"),
        (lambda: unlike(reset=lambda seed: np.zeros(1)), "Return observation, info"),
        (lambda: unlike(reset=lambda seed: (np.zeros(3), {})), "Return (1,), or declare another observation_space"),
        (
            lambda: unlike(step=lambda action: (0, 0, True, {})),
            "Return observation, reward, terminated, truncated, info",
        ),
        (lambda: load("script:cartpole/random"), "Name a model"),
        (lambda: load("champion:duel"), "Train one: `sparring.train('duel')`"),
        (lambda: load(None), "name = None. Give str or Path."),
        (lambda: load("abc"), "at least 6 digits"),
        (lambda: load(Path("nowhere")), "Give the folder of one model"),
        (lambda: load("champion:cartpole", seed=-3), "Count seeds from 0"),
        (lambda: load(model.id, seat=1), "seat 1. Its only seat is 0."),
        (lambda: load(run), "Use the run's `model`, which is loaded"),
        (lambda: evaluate(run), "Use the run's `model`, which is loaded"),
        (lambda: evaluate(None), "Give LoadedModel or str or Path"),
        (lambda: evaluate(model, "ten"), "episodes = 'ten'. Give int."),
        (lambda: evaluate(model, 0), "Play at least one"),
        (lambda: evaluate("script:connect-four/random", against="tactica"), "Did you mean 'tactical'?"),
        (lambda: evaluate(model, against="balance"), "one seat, so there is no opponent. Leave out against"),
        (lambda: evaluated.plot("returns.gif"), "plot(file): 'returns.gif' is no picture"),
        (lambda: predict(np.zeros(3)), "Give (4,)"),
        (lambda: predict("left"), "state has shape ()"),
        (lambda: predict(list("abcd")), "state is no float32. Give numbers."),
        (lambda: predict({"velocity": np.zeros(4)}), "has no 'state'"),
        (lambda: predict((np.zeros(4), {})), "of what reset() returns the first part"),
        (lambda: predict([[0, 0, 0, 0], [0, 0, 0]]), "state is no array"),
        (lambda: predict(np.zeros((2, 3, 4))), "Give (4,)"),
        (lambda: predict(np.zeros(4), seat=1), "seat 1. Count from 0 to 0."),
        (lambda: predict(np.zeros(4), legal=[1]), "legal has shape (1,). Give (2,) of numbers."),
        (lambda: predict(np.zeros((2, 4)), legal=[1, 0]), "Give (2, 2) of numbers."),
        (lambda: predict(np.zeros(4), legal=[0, 0]), "legal allows no choice"),
    ):
        with pytest.raises(sparring.SparringError, match=re.escape(words)):
            call()
    with pytest.raises(TypeError, match="'learning_rate'; those of the algorithm go into settings="):
        train("cartpole", learning_rate=1e-3)
    assert train("cartpole", steps=np.int64(256), settings={"learning_rate": np.float32(1e-3)}, progress=False)


def test_the_games_after_training_are_announced(capsys: pytest.CaptureFixture[str]) -> None:
    sparring.train("cartpole", steps=512, actors=2)
    first, *_, played, last = capsys.readouterr().err.splitlines()
    assert first == "actors 2 is not used: in topology single the learner's process plays"
    assert "100%  512 steps" in played
    assert last == "publishing the last model: it plays the promotion gate's games …"
    assert logging.getLogger("sparring").level == logging.NOTSET


def test_a_terminal_keeps_the_last_progress_beside_what_is_announced() -> None:
    ours, theirs = os.openpty()
    code = "import sparring; sparring.train('cartpole', steps=512, promote=False)"
    subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True)
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert re.search(r"\r\x1b\[2K100%  512 steps.*\r\npublishing the last model: it plays its .*…\r\n", said), said


class Sampled(gymnasium.Env[Any, Any]):
    """Shows and takes what its spaces say, whatever they are."""

    def __init__(self, seen: Any, done: Any) -> None:
        self.observation_space, self.action_space, self.steps = seen, done, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 10, False, {}


def test_a_model_takes_what_its_environment_shows_and_answers_what_that_takes() -> None:
    box, spaces = gymnasium.spaces.Box, gymnasium.spaces
    deep = spaces.Dict(
        {"a": box(-1, 1, (2,)), "b": spaces.Dict({"c": spaces.Tuple((spaces.MultiBinary(2), box(0, 1)))})}
    )
    uneven = box(np.array([0, 4], np.float32), np.array([1, 5], np.float32))
    for seen, done in (
        (deep, spaces.Discrete(2, start=5)),
        (box(-1, 1, ()), spaces.MultiDiscrete([[2, 3], [4, 5]])),
        (box(0, 255, (100, 120, 3), np.uint8), uneven),
    ):
        given = Sampled(seen, done)
        model = sparring.train(given, steps=64, envs=2, promote=False, progress=False).model
        for deterministic in (True, False):
            assert done.contains(model.predict(given.reset()[0], deterministic=deterministic))
        env = sparring.make(model.game)
        env.step(model.predict(env.reset()[0]))


def test_environments_of_make_that_differ_are_different_games() -> None:
    made = [sparring.make("connect-four", opponent=one) for one in ("random", "tactical")]
    games = {sparring.train(one, steps=64, promote=False, progress=False).result.plan.game for one in made}
    assert len(games) == 2


def test_a_dict_of_observations_is_predicted_for_one_and_for_many() -> None:
    class Two(Walk):
        observation_space = gymnasium.spaces.Dict(
            {"place": Walk.observation_space, "half": gymnasium.spaces.Discrete(2)}
        )

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            seen, info = super().reset(seed=seed)
            return {"place": seen, "half": 0}, info

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, *rest = super().step(action)
            return ({"place": seen, "half": int(self.steps > 5)}, *rest)  # type: ignore[return-value]

    model = sparring.train(Two, steps=512, progress=False).model
    assert model.predict({"place": [0.0], "half": 1}) in (0, 1)
    assert model.predict({"place": np.zeros((3, 1)), "half": [0, 1, 0]}).shape == (3,)
    with pytest.raises(sparring.SparringError, match="Give a mapping of half, place"):
        model.predict(np.zeros(1))


def test_a_run_that_learned_from_records_alone_plots_its_loss() -> None:
    config, rng = configs.load(None, ()), np.random.default_rng(0)
    configs.open_data_folder(Path(config.data))
    with open_store(config.store_url) as store:
        for chunks in play(open_game("cartpole", 4), [script("cartpole", "balance")], list(range(8)), rng, "play"):
            store.append(chunks)
    run = sparring.train("cartpole", "bc", source="store", steps=20_000, progress=False)
    (line,) = run.plot("loss.png").axes[0].lines
    assert np.isfinite(line.get_xydata()).all()
    assert line.get_xydata()[-1, 0] == run.result.updates > 0


def test_ctrl_c_ends_a_run_in_good_order(tmp_path: Path) -> None:
    code = "import sparring; run = sparring.train('cartpole', steps=10**9); print(run.state, run.model.id)"
    training = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    deadline = time.monotonic() + 90
    while not list(tmp_path.glob("data/runs/*/metrics.jsonl")):
        assert training.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(training.pid, signal.SIGINT)
    said, _ = training.communicate(timeout=90)
    assert training.returncode == 0
    assert re.search(r"stopped [0-9a-f]{64}", said)
