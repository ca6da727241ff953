"""A league on Ray, and learners that have workers of their own: the same files, elsewhere."""

import json
import subprocess
import sys

import pytest
from test_league_kills import TOML

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def league(folder, toml, *words):
    """What `spar league` says at its end, as JSON."""
    (folder / "league.toml").write_text(toml)
    command = [sys.executable, "-m", "sparring", "league", "connect-four", "--data", str(folder), "--json"]
    limits = ["--rounds", "2", "--for", "300s"]
    said = subprocess.run([*command, *limits, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout.splitlines()[-1])


def test_a_league_learns_and_plays_its_matches_on_ray(tmp_path):
    pytest.importorskip("ray")
    said = league(tmp_path, TOML, "--on", "ray://local")
    assert said["frozen"] >= 2
    assert said["matches"] > 0
    assert {one["name"] for one in said["learners"]} == {"main-0", "main-exploiter-0"}
    assert max(one["steps"] for one in said["learners"]) > 0  # two rounds may be over before the other has begun


@pytest.mark.parametrize(("topology", "workers"), [("central", "actors = 2"), ("allreduce", "learners = 2")])
def test_a_learner_may_have_two_workers(tmp_path, topology, workers):
    toml = TOML.replace("[main]", f'[main]\ntopology = "{topology}"').replace("[train]", f"[train]\n{workers}")
    said = league(tmp_path, toml.replace("[main_exploiter]", "[main_exploiter]\ncount = 0"))
    assert said["frozen"] >= 2
    (run,) = (tmp_path / "runs").iterdir()
    settings = {one["key"]: one["value"] for one in json.loads((run / "settings.json").read_text())}
    key, _, count = workers.partition(" = ")
    assert (settings["topology"], settings[f"train.{key}"]) == (topology, int(count))
