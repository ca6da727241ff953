"""Which value wins: the command line, then spar.toml, then the preset, then the default; and that a user can see it."""

import json
from pathlib import Path

import pytest

import sparring
from sparring.cli import main
from sparring.config import load
from sparring.errors import ConfigError
from sparring.learn.algorithms.ppo import Ppo
from sparring.learn.plan import TrainRequest, plan

APEX = TrainRequest(game="cartpole", algo="apex")
PONG = TrainRequest(game="atari:Pong", algo="dqn")


def origins(made):
    return {row.key: (row.value, row.origin) for row in made.explained}


def test_a_preset_fills_what_nobody_set():
    made = plan(APEX, load())
    assert made.replay.sampler == "prioritised"
    assert origins(made)["replay.sampler"] == ("prioritised", "preset")
    assert origins(made)["replay.remover"] == ("fifo", "default")


@pytest.mark.parametrize(
    ("key", "value"), [("replay.sampler", "uniform"), ("train.envs", 16), ("train.reward_clip", 0.0)]
)
def test_what_was_set_wins_over_the_preset_even_where_it_is_the_default(key, value):
    request = PONG if key == "train.reward_clip" else APEX
    made = plan(request, load(None, (f"{key}={value}",)))
    section, _, name = key.partition(".")
    assert getattr(made.replay if section == "replay" else made, name) == value
    assert origins(made)[key] == (value, "--set")


def test_spar_toml_wins_over_the_preset_and_loses_to_the_command_line(tmp_path):
    file = tmp_path / "spar.toml"
    file.write_text('[replay]\nsampler = "uniform"\n[train]\nenvs = 16\nactors = 2\n')
    made = plan(TrainRequest(game="cartpole", algo="apex", actors=3), load(file))
    assert (made.replay.sampler, made.envs, made.actors) == ("uniform", 16, 3)
    assert origins(made)["replay.sampler"] == ("uniform", "spar.toml")
    assert origins(made)["train.actors"] == (3, "command line")


def test_a_setting_of_the_algorithm_says_where_it_comes_from():
    made = plan(TrainRequest(game="cartpole", settings=("epochs=20",)), load())
    said = origins(made)
    assert said["ppo.epochs"] == (20, "command line")
    assert said["ppo.discount"] == (0.98, "preset")
    assert said["ppo.clip"] == (0.2, "default")


def test_explain_shows_all_settings_and_trains_nothing(tmp_path, capsys):
    data = tmp_path / "data"
    assert main(["train", "cartpole", "--explain", "--algo-set", "clip=0.1", "--data", str(data), "--json"]) == 0
    said = {row["key"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert said["ppo.clip"] == {"key": "ppo.clip", "value": 0.1, "origin": "command line"}
    assert {"topology", "steps", "train.envs", "replay.capacity_steps"} <= set(said)
    by_default = {"algo": "ppo", "source": "sim", "minutes": None, "until": None, "promote": True}
    assert {key: said[key]["value"] for key in by_default} == by_default
    assert {said[key]["origin"] for key in by_default} == {"default"}
    assert not list(data.glob("runs/*"))


def test_the_run_keeps_the_table(tmp_path):
    words = ["--steps", "64", "--minutes", "9", "--until", "500", "--no-promote", "--data", str(tmp_path)]
    assert main(["train", "cartpole", *words]) == 0
    (file,) = Path(tmp_path).glob("runs/*/settings.json")
    rows = {row["key"]: row for row in json.loads(file.read_text())}
    for key, value in {"steps": 64, "minutes": 9.0, "until": 500.0, "promote": False}.items():
        assert rows[key] == {"key": key, "value": value, "origin": "command line"}
    program = sparring.train("cartpole", steps=64, minutes=9, promote=False, progress=False, data=tmp_path)
    rows = {row["key"]: row for row in json.loads((program.folder / "settings.json").read_text())}
    given = {key: row["value"] for key, row in rows.items() if row["origin"] == "program"}
    assert given == {"steps": 64, "minutes": 9, "promote": False}


def test_nodes_are_explained_without_their_tokens(capsys):
    url = "wss://secret@127.0.0.1:1"
    assert main(["train", "cartpole", "--explain", "--json", "--nodes", url, "--contribute", "weights"]) == 0
    said = {row["key"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert said["nodes"] == {"key": "nodes", "value": ["wss://…@127.0.0.1:1"], "origin": "command line"}
    assert said["nodes.contribute"]["origin"] == "command line"


def test_a_resumed_run_is_not_explained_as_a_new_one(capsys):
    assert main(["train", "cartpole", "--explain", "--resume"]) == 1
    assert "spar runs show RUN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algo", "said", "refused"),
    [
        ("ppo", "hidden_units=[32]", True),
        ("ppo", "memory=gru:16", True),
        ("dqn", "dueling=true", True),
        ("dqn", "dueling=false", False),
        ("dqn", "learning_rate=0.01", False),
        ("mmd", "hidden_units=[32]", False),  # of its critics
        ("test_plan:OwnAlgorithm", "hidden_units=[32]", False),
    ],
)
def test_a_network_of_ones_own_takes_no_setting_of_the_built_in_one(algo, said, refused):
    request = TrainRequest("connect-four", algo, settings=("network=user_modules:Lazy", said))
    if not refused:
        assert plan(request, load()).settings.network == "user_modules:Lazy"
        return
    key = said.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key} shapes the built-in network, and network names another"):
        plan(request, load())


def test_actors_that_no_process_needs_are_told(caplog):
    plan(TrainRequest("cartpole", actors=4), load())
    assert caplog.messages == ["--actors 4 is not used: in topology single the learner's process plays"]
    caplog.clear()
    plan(TrainRequest("cartpole", topology="sync", actors=4), load())
    plan(TrainRequest("cartpole", actors=1), load())
    assert not caplog.messages


class OwnAlgorithm(Ppo):
    """It may read any setting."""
