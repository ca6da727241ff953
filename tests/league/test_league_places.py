"""A league on Ray, and learners that have workers of their own: the same files, elsewhere."""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from test_league_kills import TOML

from servers.running import ConsulAgent
from sparring.errors import SparringError
from sparring.registry.file import FileRegistry
from sparring.services.discovery import open_discovery
from sparring.services.keys import create_keys
from sparring.services.solver import Solver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The evaluator never rests, and a main agent is frozen late enough that members meet before the next.
LATER = TOML.replace("core_share = 0.2", "core_share = 1.0").replace("steps = 2_000", "steps = 20_000")


def league(folder, toml, *words, **environment):
    """What `spar league` says at its end, as JSON."""
    (folder / "league.toml").write_text(toml)
    command = [sys.executable, "-m", "sparring", "league", "connect-four", "--data", str(folder), "--json"]
    limits = ["--rounds", "2", "--for", "300s"]
    around = {**os.environ, **environment}
    said = subprocess.run(
        [*command, *limits, *words], cwd=folder, env=around, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout.splitlines()[-1])


def counted(folder, query):
    with closing(sqlite3.connect(folder / "league" / "connect-four.db")) as file:
        return file.execute(query).fetchall()


def results_of(folder, learner):
    """What its games in all came to: won, drawn, lost."""
    return counted(folder, f"SELECT SUM(wins), SUM(draws), SUM(losses) FROM results WHERE learner = '{learner}'")[0]


def with_workers(toml, topology, workers):
    """The main agent has that topology; all have as many workers."""
    return toml.replace("[main]", f'[main]\ntopology = "{topology}"').replace("[train]", f"[train]\n{workers}")


def test_a_league_learns_and_plays_its_matches_on_ray(tmp_path):
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # Ray's sockets are there: their paths must not be long
        said = league(tmp_path, TOML, "--on", "ray://local", RAY_TMPDIR=short)
        left = [one.info for one in psutil.process_iter(["pid", "cmdline"]) if short in str(one.info["cmdline"])]
        assert left == []
    assert said["frozen"] >= 2
    assert said["matches"] > 0
    assert {one["name"] for one in said["learners"]} == {"main-0", "main-exploiter-0"}
    assert max(one["steps"] for one in said["learners"]) > 0  # two rounds may be over before the other has begun


@pytest.mark.servers
def test_the_services_of_a_league_are_found_through_consul_from_another_machine(tmp_path):
    """A machine is a folder of its own here, as in tests/services/test_consul.py."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name, ConsulAgent(Path(name)) as agent:
        create_keys(Path(name, "k"))
        url = f"{agent.url}?keys={name}/k&folder={name}"
        found = {}

        def ask():
            with closing(open_discovery(f"{url}/far&group=league-connect-four")) as far, Solver(far) as solver:
                until = time.monotonic() + 240
                while not found.get("services") and time.monotonic() < until:
                    with suppress(SparringError):
                        found["members"] = solver.retrieve("league", "status")["members"]
                        found["services"] = set(far.services()) >= {"league", "pool", "learner", "evaluator"}
                    time.sleep(0.5)

        asking = threading.Thread(target=ask)
        asking.start()
        said = league(tmp_path, LATER, "--set", f"services.discovery={url}/near")
        asking.join()
    assert said["frozen"] >= 2
    assert found["members"] >= 1
    assert found["services"]


@pytest.mark.parametrize(
    ("topology", "workers"),
    [("central", "actors = 2"), ("allreduce", "learners = 2"), ("allreduce", "learners = 2\ngradient_share = 0.05")],
)
def test_a_learner_may_have_two_workers(tmp_path, topology, workers):
    toml = with_workers(LATER, topology, workers)
    said = league(tmp_path, toml.replace("[main_exploiter]", "[main_exploiter]\ncount = 0"))
    assert said["frozen"] >= 2
    (run,) = (tmp_path / "runs").iterdir()
    settings = {one["key"]: one["value"] for one in json.loads((run / "settings.json").read_text())}
    assert settings["topology"] == topology
    for line in workers.splitlines():
        key, _, value = line.partition(" = ")
        assert settings[f"train.{key}"] == json.loads(value)
    won, _, lost = results_of(tmp_path, "main-0")
    assert won
    assert lost
    assert FileRegistry(tmp_path / "models").strengths("connect-four", "1") is None  # `promote = false`
