"""A running league of real processes, each of them killed again and again: it goes on, and its results are exact."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
import uuid
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import psutil
import pytest

from sparring.config import load
from sparring.errors import SparringError
from sparring.games.catalogue import spec_of
from sparring.league.league_file import parse_league
from sparring.league.state import LeagueState
from sparring.learn.league.launch import RunningLeague
from sparring.services.discovery import open_discovery
from sparring.services.solver import Solver

KILLS = 20
TOML = """
live_every_s = 0.5
promote = false
[train]
envs = 8
checkpoint_every_s = 1.0
[main]
algo = "ppo"
freeze_every_steps = 2_000
least_steps = 500
settings = { hidden_units = [16], rollout_ticks = 16, minibatch_steps = 256, epochs = 1 }
[main_exploiter]
freeze_every_steps = 2_000
least_steps = 500
settings = { hidden_units = [16], rollout_ticks = 16, minibatch_steps = 256, epochs = 1 }
[evaluator]
core_share = 0.2
match_games = 4
"""
LIMIT_S = 180.0  # for a killed process to be back on a busy machine


class Reporter(threading.Thread):
    """A caller like an actor: it sends results until the league acknowledges them, each under one id."""

    def __init__(self, discovery):
        super().__init__()
        self.discovery, self.acknowledged, self.stopping = discovery, [], threading.Event()

    def run(self):
        with closing(open_discovery(self.discovery)) as found, Solver(found, deadline_s=5.0) as solver:
            while not self.stopping.is_set():
                result = [uuid.uuid4().hex, "reported", 1, 0, 0]
                while not self.stopping.is_set():
                    try:
                        solver.retrieve("league", "exchange", "main-0", 0, [result])
                        self.acknowledged.append(result[0])
                        break
                    except SparringError:
                        time.sleep(0.05)  # the same result again
                time.sleep(0.01)


def wait_for(condition, what):
    until = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < until, what
        time.sleep(0.2)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_process_may_be_killed_at_any_time(tmp_path):
    config = replace(load(None), data=str(tmp_path))
    draw = random.Random(1)
    with (
        RunningLeague("connect-four", parse_league(tomllib.loads(TOML)), config) as league,
        closing(open_discovery(league.discovery)) as found,
    ):
        wait_for(lambda: league.status().get("members", 0) > 2, "a first model is frozen")
        reporter = Reporter(league.discovery)
        reporter.start()
        killed = []
        for number in range(KILLS):
            service = ("league", "pool", "learner", "evaluator")[number % 4]
            victims = wait_for(lambda service=service: found.instances(service), f"{service} is there")
            victim = draw.choice(list(victims))
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(service)
            wait_for(
                lambda service=service, pid=victim.pid: [one for one in found.instances(service) if one.pid != pid],
                f"another {service} is there",
            )
        steps = wait_for(lambda: league.status().get("learners"), "the league answers")
        before = {one["name"]: (one["generation"], one["steps"]) for one in steps}
        wait_for(
            lambda: all(
                (one["generation"], one["steps"]) > before[one["name"]] for one in league.status().get("learners", [])
            ),
            "every learner goes on",
        )
        reporter.stopping.set()
        reporter.join()
        matches = wait_for(lambda: league.status().get("matches"), "matches are played")
    assert set(killed) == {"league", "pool", "learner", "evaluator"}
    assert len(reporter.acknowledged) > KILLS
    with closing(sqlite3.connect(tmp_path / "league" / "connect-four.db")) as file:
        stored = [row[0] for row in file.execute("SELECT id FROM results WHERE opponent = 'reported'")]
    assert set(reporter.acknowledged) <= set(stored)
    assert len(stored) == len(set(stored)) <= len(reporter.acknowledged) + 1  # the last may be stored and not said
    assert matches


@contextmanager
def spar_league(folder):
    """`spar league` as a person starts it; all of its processes are killed in the end."""
    command = [sys.executable, "-m", "sparring", "league", "connect-four", "--data", str(folder)]
    process = subprocess.Popen([*command, "--file", str(folder / "league.toml")], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        family = [process, *psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.stderr.close()
        process.wait()
        psutil.wait_procs(family[1:], timeout=60)


def state_of(folder):
    """The learners by name, and the members, as they are on disk."""
    with LeagueState(folder, spec_of("connect-four").id) as state:
        return {one.name: one for one in state.learners()}, state.members()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_league_that_was_killed_whole_goes_on_with_its_members_and_runs(tmp_path):
    (tmp_path / "league.toml").write_text(TOML)
    with spar_league(tmp_path):
        wait_for(lambda: any(one.role == "main" for one in state_of(tmp_path)[1]), "a main agent is frozen")
        time.sleep(2.0)  # more than the time between two checkpoints
    learners, members = state_of(tmp_path)
    with spar_league(tmp_path) as process:
        wait_for(lambda: state_of(tmp_path)[0]["main-0"].steps > learners["main-0"].steps, "the main agent goes on")
        again, more = state_of(tmp_path)
        assert {one.name for one in members} <= {one.name for one in more}
        assert again["main-0"].run == learners["main-0"].run
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
