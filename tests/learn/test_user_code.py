"""What a user writes in one file of their own folder, through the installed command: trained, published, played."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import open_game
from sparring.learn.algorithms import open_algorithm

DOCS = Path(__file__).parents[2] / "docs"
SPAR = (
    sys.executable,
    "-I",
    "-c",
    "from sparring.cli import main; raise SystemExit(main())",
)  # looks in no folder, as `spar` does not
WIDE = """
from sparring.nets.torch_network import default_network
from sparring.wire.network import Dense, Head, NetworkSpec, Residual


def wide(seat):
    usual = default_network(seat)
    trunk = (Dense(48, "relu"), Residual(out="relu"))
    return NetworkSpec(usual.inputs, (Head("logits", seat.action.masks, dueling=True),), trunk)
"""


def example(page, section, file):
    text = (DOCS / page).read_text()
    (found,) = re.findall(rf"```python\n# {file}\n(.*?)```", text[text.index(f"## {section}") :], re.S)
    return found


def spar(folder, *words):
    done = subprocess.run([*SPAR, *words, "--json"], cwd=folder, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


QUICK = ("--no-promote", "--set", "registry.gate_episodes=2", "--set", "replay.min_steps=200", "--set", "data=data")


@pytest.mark.slow
def test_the_pages_algorithm_is_trained_published_resumed_and_played(tmp_path):
    (tmp_path / "mine.py").write_text(example("training.md", "Your own algorithm", "mine.py"))
    said = spar(tmp_path, "train", "cartpole", "--algo", "mine:QLearning", "--steps", "1008", *QUICK)
    assert (said["algo"], said["env_steps"]) == ("mine:QLearning", 1008)
    again = spar(tmp_path, "train", "cartpole", "--algo", "mine:QLearning", "--resume", "--steps", "1200", *QUICK)
    assert (again["run"], again["env_steps"]) == (said["run"], 1200)
    (tmp_path / "mine.py").unlink()  # whoever plays needs the model alone
    played = spar(tmp_path, "evaluate", again["model"], "--episodes", "3", "--set", "data=data")
    assert played["episodes"] == 3


def test_a_network_of_ones_own_is_trained_exported_and_played(tmp_path):
    (tmp_path / "my_nets.py").write_text(WIDE)
    network = ("--algo-set", "network=my_nets:wide", "--algo-set", "quantiles=4")
    said = spar(tmp_path, "train", "cartpole", "--algo", "dqn", *network, "--steps", "1000", *QUICK)
    (tmp_path / "my_nets.py").unlink()
    folder = tmp_path / "data" / "models" / said["model"]
    card = json.loads((folder / "card.json").read_text())
    assert [layer["type"] for layer in card["network"]["trunk"]] == ["dense", "residual"]
    assert card["network"]["heads"] == [{"name": "logits", "units": 2, "dueling": True}]
    assert spar(tmp_path, "evaluate", said["model"], "--episodes", "3", "--set", "data=data")["episodes"] == 3


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("no_such_module:Mine", Missing, "there is no module 'no_such_module'"),
        ("user_networks:missing", Missing, "user_networks has no 'missing'"),
        ("user_networks:deep", ConfigError, "'user_networks:deep' has no begin, update"),
        ("os; import x:Mine", ConfigError, "it is no module:name"),
    ],
)
def test_a_name_that_leads_to_no_algorithm_is_refused(name, kind, text):
    with pytest.raises(kind) as caught:
        open_algorithm(name)
    assert text in str(caught.value)


def test_the_pages_game_without_velocities_is_sound(tmp_path, monkeypatch):
    (tmp_path / "hidden.py").write_text(example("algorithms/r2d2.md", "Results", "hidden.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    game = open_game("hidden:poles", 3)
    view = game.reset(np.arange(3, dtype=np.uint64), np.ones(3, bool))
    usual = open_game("cartpole", 3).reset(np.arange(3, dtype=np.uint64), np.ones(3, bool))
    assert (view.observation[0]["observation/places"] == usual.observation[0]["observation/state"][:, ::2]).all()
    assert game.step([np.zeros(3, np.int32)]).reward.tolist() == [[1.0]] * 3
