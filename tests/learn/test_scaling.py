"""More and fewer actors while a run goes on, as others ask: processes with shared memory, and services of a host."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hosted_runs import learn, turn_until, wired

from servers.running import ConsulAgent
from sparring.errors import Missing, Refused
from sparring.learn import actors as opening
from sparring.learn.topologies import apex
from sparring.services.keys import create_keys

FOLDER = "XDG_RUNTIME_DIR"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No other run of this machine is found here. The folder's name is short: sockets lie in it."""
    folder = tempfile.mkdtemp(prefix="spar")
    monkeypatch.setenv(FOLDER, folder)
    yield
    shutil.rmtree(folder)


@pytest.fixture(params=[True, False], ids=["processes", "services"])
def of_either_kind(request, monkeypatch):
    """Actors that share memory, and the same as services, as they are on a cluster."""
    if not request.param:
        for module in (opening, apex):
            monkeypatch.setattr(module, "is_local", lambda url: False)


def scaled(topology, count):
    """Ask for so many as others do, in a thread of their own; turns go on meanwhile."""
    players = topology.actors
    asked = (lambda: players.host.scale("actor", count)) if hasattr(players, "host") else _of(players, count)
    asking = threading.Thread(target=asked)
    asking.start()
    turn_until(topology, lambda: not asking.is_alive() and topology.flow()["actors"] == count)
    asking.join()


def _of(players, count):
    return lambda: players.scale("actor", count)


def test_in_step_a_version_is_played_by_all_there_are(config, of_either_kind):
    with wired(config, "sync") as topology:
        learn(topology, 3)
        for count in (4, 1, 2):
            scaled(topology, count)
            turns = learn(topology, 3)
            assert turns[-1].batch.reward.shape[1] == 4 * count
            assert turns[-1].metrics["staleness_updates"] == 0
        state = topology.save()
    with wired(config, "sync", actors=3) as again:
        again.load(state)
        assert learn(again, 2)[-1].batch.reward.shape[1] == 4 * 3


@pytest.mark.parametrize("topology", ["async", "apex"])
def test_who_comes_plays_with_new_weights_and_is_learned_from_and_who_leaves_is_not_missed(
    topology, config, of_either_kind
):
    with wired(config, topology) as topology:
        learn(topology, 20)
        known = topology.learner.updates
        scaled(topology, 4)
        come = set()

        def has_come():
            for actor in range(2, topology.actors.actors):
                if topology.actors.waiting(actor) and topology.actors.version(actor) >= known:
                    come.add(actor)
            return come == {2, 3}

        turn_until(topology, has_come)
        before = topology.env_steps
        turn_until(topology, lambda: topology.env_steps > before + 500)
        scaled(topology, 1)
        learn(topology, 20)
        scaled(topology, 2)  # a number that was there before
        learn(topology, 20)


@pytest.mark.slow
def test_shards_take_in_what_new_actors_play(config, of_either_kind):
    with wired(config, "apex", shards=2) as topology:
        learn(topology, 20)
        scaled(topology, 5)
        learn(topology, 30)
        scaled(topology, 2)
        learn(topology, 30)


def test_what_cannot_be_met_is_refused(config):
    with wired(config, "central") as topology:
        learn(topology, 1)
        with pytest.raises(Refused, match="It began with 2 and keeps them"):
            topology.actors.host.scale("environments", 3)
    with wired(config, "async") as topology:
        learn(topology, 1)
        asked = topology.actors
        with pytest.raises(Refused, match=r"service actor: 0 instances\. Ask for 1 to 1000\."):
            asked.scale("actor", 0)
        with pytest.raises(Missing, match=r"no service 'replay' was started\. It runs actor\."):
            asked.scale("replay", 2)


@contextmanager
def training(data, topology):
    """A real `spar train`, until it is asked to stop; it must end in good order."""
    algo = "apex" if topology == "apex" else "ppo"
    words = f"train cartpole --algo {algo} --topology {topology} --actors 2 --envs 4 --no-promote --data {data}"
    timing = "--set train.log_every_s=0.2 --set replay.min_steps=500 --set registry.gate_episodes=2"
    running = subprocess.Popen(
        [sys.executable, "-m", "sparring", *f"{words} {timing} --json".split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
        assert running.returncode == 0, said
    finally:
        running.kill()
        running.communicate()


def metrics(data):
    lines = [line for file in Path(data).glob("runs/*/metrics.jsonl") for line in file.read_text().split("\n")[:-1]]
    return [json.loads(line) for line in lines]


def wait_for(running, there, seconds=90.0):
    until = time.monotonic() + seconds
    while not there():
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.1)


def scale(count):
    words = ["services", "scale", f"actor={count}", "--json"]
    done = subprocess.run([sys.executable, "-m", "sparring", *words], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["scaled"]


@pytest.mark.servers
def test_a_run_at_work_is_found_where_its_settings_say(tmp_path, monkeypatch):
    with ConsulAgent(tmp_path) as agent:
        create_keys(tmp_path / "k")
        toml = tmp_path / "spar.toml"
        toml.write_text(f'[services]\ndiscovery = "{agent.url}"\nkeys = "{tmp_path}/k"\n')
        monkeypatch.chdir(tmp_path)  # where both look for it
        with training(tmp_path / "data", "async") as running:
            wait_for(running, lambda: len(metrics(tmp_path / "data")) > 1)
            far = f"{agent.url}?keys={tmp_path}/k&folder={tempfile.mkdtemp(prefix='spar', dir=os.environ[FOLDER])}"
            done = subprocess.run(
                [sys.executable, "-m", "sparring", "services", "list", "--json", "--discovery", far],
                capture_output=True,
                text=True,
                timeout=60,
            )
            hosts = [row for row in json.loads(done.stdout)["services"] if row["service"] == "host"]
            assert [(row["pid"], row["address"][:6]) for row in hosts] == [(running.pid, "tcp://")]
            assert scale(3) == {"actor": 3}
            wait_for(running, lambda: metrics(tmp_path / "data")[-1]["actors"] == 3)


@pytest.mark.parametrize("topology", ["apex", "async", "sync"])
@pytest.mark.slow
def test_a_run_at_work_is_scaled_by_a_command(topology, tmp_path):
    with training(tmp_path, topology) as running:

        def latest(name):
            return (metrics(tmp_path) or [{}])[-1].get(name, 0)

        wait_for(running, lambda: latest("updates") >= 2)
        for count in (4, 1):
            assert scale(count) == {"actor": count}
            wait_for(running, lambda count=count: latest("actors") == count)
            playing = [
                one
                for one in psutil.Process(running.pid).children()
                if "sparring.learn.actors.actor_process" in one.cmdline()
            ]
            assert len(playing) == count
            goal = (latest("updates") + 3, latest("env_steps") + 1)
            wait_for(running, lambda goal=goal: latest("updates") >= goal[0] and latest("env_steps") >= goal[1])
