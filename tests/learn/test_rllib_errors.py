"""What is asked of RLlib and cannot be is refused in a sentence that says what can."""

import sys

import pytest
from reach_game import SPEC as REACH

from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import spec_of
from sparring.learn.algorithms import open_algorithm
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.rllib.algorithm import OFFERS, check_source

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib warns of itself on import


def test_an_unknown_name_is_answered_with_those_known():
    with pytest.raises(Missing, match=r"Choose one of rllib:PPO, rllib:APPO, .*rllib:IQL"):
        open_algorithm("rllib:Zero")
    with pytest.raises(Missing, match="Did you mean 'rllib:PPO'"):
        open_algorithm("rllib:ppo")
    with pytest.raises(ConfigError, match="world model"):
        open_algorithm("rllib:DreamerV3")


@pytest.mark.parametrize(("name", "source", "hint"), [
    ("PPO", "store", "Use one of rllib:BC, rllib:MARWIL, rllib:CQL, rllib:IQL"),
    ("DQN", "mix", "--from sim"),
    ("BC", "sim", "--algo rllib:BC --from store"),
])  # fmt: skip
def test_an_algorithm_that_cannot_learn_from_there_says_what_can(name, source, hint):
    with pytest.raises(ConfigError, match=hint):
        check_source(f"rllib:{name}", source, "cartpole")


def test_every_offer_is_one_of_rllibs():
    from ray.rllib.algorithms.registry import ALGORITHMS

    assert set(OFFERS) <= set(ALGORITHMS)


def test_a_setting_that_rllib_has_not_is_refused_with_the_nearest(config):
    with pytest.raises(ConfigError, match="Did you mean 'clip_param'"):
        plan(TrainRequest("cartpole", "rllib:PPO", settings=("clip_parm=0.1",)), config)


def test_a_plan_keeps_rllibs_settings_and_its_topology(config):
    agreed = plan(TrainRequest("cartpole", "rllib:PPO", settings=("lr=0.002",)), config)
    assert (agreed.topology, agreed.settings.lr, agreed.actors) == ("rllib", 0.002, 1)
    assert agreed.record()["settings"]["clip_param"] == 0.2


def test_another_topology_is_refused(config):
    with pytest.raises(ConfigError, match="Leave it out: rllib suits"):
        plan(TrainRequest("cartpole", "rllib:PPO", topology="sync"), config)
    with pytest.raises(ConfigError, match="rllib carries rllib"):
        plan(TrainRequest("cartpole", "ppo", topology="rllib"), config)


def test_spaces_that_rllib_cannot_take_are_refused():
    with pytest.raises(ConfigError, match="rllib:CQL chooses among box ones"):
        open_algorithm("rllib:CQL").seat(spec_of("cartpole"))
    with pytest.raises(ConfigError, match="rllib:DQN chooses among discrete ones"):
        open_algorithm("rllib:DQN").seat(REACH)


def test_masks_that_rllib_cannot_keep_to_are_refused(config):
    from sparring.learn.rllib.topology import fit_game

    with pytest.raises(ConfigError, match=r"RLlib's SAC cannot keep to them.*--algo rllib:PPO"):
        fit_game(plan(TrainRequest("connect-four", "rllib:SAC"), config))


def test_without_rllib_the_extra_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.rllib", None)
    with pytest.raises(ConfigError, match=r"pip install 'sparring\[ray\]'"):
        open_algorithm("rllib:PPO")
