"""A user's own policy: one class, named in a setting, that explores; what is deployed has a built-in name."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparring.errors import ConfigError, Missing, UserCodeError
from sparring.games.catalogue import spec_of
from sparring.games.spec import Leaf, discrete
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.train import TrainOptions, train
from sparring.nets.policies import BUILT_IN, best
from sparring.nets.user_code import open_policy
from sparring.registry import open_registry

ACTION = discrete(3)
PAGE = Path(__file__).parents[2] / "docs" / "training.md"


class Wrong:
    deployed = "os:system"

    def __init__(self, action):
        pass

    def explore(self, out, legal, rng, epsilon):
        return best(out["logits"], legal, rng)


class Mute:
    deployed = "greedy"

    def __init__(self, action):
        pass


class Number(Wrong):
    deployed = "categorical"

    def explore(self, out, legal, rng, epsilon):
        return 3


class FirstRow(Number):
    def explore(self, out, legal, rng, epsilon):
        return best(out["logits"][:1], legal, rng)


class ForBoxes(Wrong):
    deployed = "gaussian"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The page's own example, as a file of a user's."""
    section = PAGE.read_text()[PAGE.read_text().index("## Your own policy") :]
    (text,) = re.findall(r"```python\n# explorer.py\n(.*?)```", section, re.S)
    (tmp_path / "explorer.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "explorer:Softer"


def test_the_example_of_the_page_explores_and_its_model_is_deployed_under_a_built_in_name(example, config):
    config = replace(config, train=replace(config.train, policy=example))
    wish = TrainRequest("chain_game:chain", steps=2_000, settings=("hidden_units=[16]",), seed=1)
    done = train(wish, TrainOptions(), config, lambda progress: None)
    assert done.plan.policy == example
    card = open_registry(config.registry_url).fetch(done.published.model).card
    assert card.policy == "categorical"
    assert "explorer" not in repr(card)
    more = replace(wish, steps=4_000, settings=())
    again = train(more, TrainOptions(resume=""), replace(config, train=type(config.train)()), print_not)
    assert again.plan.policy == example, "a resumed run explores as it did"


def print_not(progress):
    """Nothing is shown."""


def test_the_example_says_the_probability_with_which_it_chose(example):
    policy = open_policy(example, ACTION)
    logits = np.tile(np.array([1.0, 0.0, 3.0], np.float32), (4_000, 1))
    legal = np.tile(np.array([True, True, False]), (4_000, 1))
    choice = policy.explore({"logits": logits}, legal, np.random.default_rng(0), 0.0)
    share = (choice.action == 0).mean()
    assert set(choice.action.tolist()) == {0, 1}
    assert abs(np.exp(choice.logp[choice.action == 0][0]) - share) < 0.03


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("gredy", Missing, "train.policy: there is no policy 'gredy'. Did you mean 'greedy'?"),
        ("test_user_policy:nothing", Missing, "test_user_policy has no 'nothing'"),
        ("no_such_module:Policy", Missing, "there is no module 'no_such_module'"),
        ("test_user_policy:print_not", ConfigError, "it is a function. Name a class."),
        ("test_user_policy:Mute", ConfigError, "it has no explore()"),
        ("test_user_policy:Wrong", ConfigError, "deployed is 'os:system', and a model's card names no code"),
        ("test_user_policy:ForBoxes", ConfigError, "policy 'gaussian': its actions are discrete"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_the_reason(name, kind, text):
    with pytest.raises(kind) as caught:
        open_policy(name, ACTION)
    assert text in str(caught.value)


def test_a_wrong_policy_is_refused_before_a_run_begins(config):
    config = replace(config, train=replace(config.train, policy="test_user_policy:Wrong"))
    with pytest.raises(ConfigError):
        train(TrainRequest("cartpole", steps=100), TrainOptions(), config, print_not)
    assert not (Path(config.data) / "runs").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Number", "your policy Number: explore() returned a int. Return Choice(action, logp)"),
        ("FirstRow", "explore() returned actions of shape [1] and log-probabilities of shape [1] for 16 rows"),
    ],
)
def test_a_policy_that_returns_no_choice_is_told_what_to_return(config, name, text):
    config = replace(config, train=replace(config.train, policy=f"test_user_policy:{name}"))
    with pytest.raises(UserCodeError) as caught:
        train(TrainRequest("cartpole", steps=100, envs=16), TrainOptions(), config, print_not)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["categorical", "greedy"])
def test_a_policy_of_choices_takes_no_box_and_a_gaussian_no_choices(name):
    box = Leaf(name="action", kind="box", shape=(2,), low=-1.0, high=1.0)
    with pytest.raises(ConfigError, match="its actions are box"):
        open_policy(name, box)
    for leaf in (spec_of("cartpole").seats[0].action, replace_leaf(box, high=-1.0), replace_leaf(box, dtype="uint8")):
        with pytest.raises(ConfigError, match="It chooses a box of floats"):
            open_policy("gaussian", leaf)
    assert {policy(ACTION if key != "gaussian" else box).deployed for key, policy in BUILT_IN.items()} == set(BUILT_IN)


def replace_leaf(leaf, **changes):
    from msgspec.structs import replace as replaced

    return replaced(leaf, **changes)
