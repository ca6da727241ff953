"""Ape-X on a real cluster of two nodes: it solves CartPole while everything in it is killed in turn, and learns from
a machine that is no node.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress

import psutil
import pytest
from hosted_runs import is_shard
from two_nodes import CLIENT, two_nodes

KILL_EVERY_S = 5.0
SHARD_AT, LEARNER_AT = 100, 500  # updates, of 1,500 and more: early, so that no run is over before them
SOLVED = 475
# Few games each, so that whole ones are played in the life of an actor: it is about 15 s.
RUN = "--algo apex --actors 3 --envs 2 --seed 1003 --set replay.shards=1 --steps 100000 --until 490 --no-promote"
TIMING = "--set train.checkpoint_every_s=3 --set train.publish_every_s=1000 --set train.log_every_s=0.5"


class Chaos:
    """Kills a random actor every five seconds while something is learned; the shard once, then the learner once."""

    def __init__(self, cluster, data):
        self._cluster, self._data, self._rng, self._next_s = cluster, data, random.Random(7), 0.0
        self._ripe_s = None  # when the learner had learned enough to be killed
        self._learner = None
        self.killed = Counter()
        self.resumed = None  # updates that the learner's successor began with

    def look(self):
        """Kill whom it is time to kill."""
        learner, said, kept_s = self._run()
        if learner is None or not said["updates"]:
            return
        with suppress(psutil.NoSuchProcess, FileNotFoundError):  # one that has just ended: look again
            if self.killed["learner"] and self.resumed is None and learner.pid != self._learner:
                self.resumed = said["updates"]
            if not self.killed["shard"] and said["updates"] >= SHARD_AT:
                self._kill("shard", self._actors(shard=True))
            elif not self.killed["learner"] and said["updates"] >= LEARNER_AT and said["shard_restarts"]:
                self._ripe_s = self._ripe_s or time.time()
                if kept_s > self._ripe_s:
                    self._learner = learner.pid
                    self._kill("learner", [learner])
            if time.monotonic() >= self._next_s and self._kill("actor", self._actors(shard=False)):
                self._next_s = time.monotonic() + KILL_EVERY_S

    def _kill(self, kind, those):
        if those:
            self._rng.choice(those).kill()
            self.killed[kind] += 1
        return bool(those)

    def _actors(self, *, shard):
        return [one for one in self._cluster.processes("ray::RayServiceActor") if is_shard(one) == shard]

    def _run(self):
        """The process that learns, what it said last, and when it last kept that."""
        for run in (self._data / "runs").glob("*"):
            with suppress(psutil.NoSuchProcess, FileNotFoundError):
                lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
                learner = psutil.Process(json.loads((run / "status.json").read_text())["pid"])
                if lines:
                    return learner, json.loads(lines[-1]), (run / "checkpoint" / "state").stat().st_mtime
        return None, {}, 0.0


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    with two_nodes() as found:
        yield found


@contextmanager
def trains(cluster, url, words):
    """`spar train cartpole` as a process; it ends with the block."""
    spar = [sys.executable, "-m", "sparring", "train", "cartpole", *words.split(), "--json", "--on", url]
    with subprocess.Popen(spar, env=cluster.environment, stdout=subprocess.PIPE, text=True) as training:
        try:
            yield training
        finally:
            training.terminate()


@pytest.mark.slow
@pytest.mark.timeout(900)  # 100 to 250 s; a bound for machines that do much else
def test_cartpole_is_solved_while_actors_replay_and_learner_are_killed(cluster, tmp_path):
    chaos = Chaos(cluster, tmp_path)
    with trains(cluster, cluster.url, f"{RUN} {TIMING} --data {tmp_path}") as training:
        while training.poll() is None:
            time.sleep(0.2)
            chaos.look()
        said = training.stdout.read()
    assert training.returncode == 0, said
    result = json.loads(said.strip().splitlines()[-1])
    assert (chaos.killed["shard"], chaos.killed["learner"], result["learner_restarts"]) == (1, 1, 1), chaos.killed
    assert chaos.killed["actor"] >= 2, chaos.killed
    assert chaos.resumed >= LEARNER_AT, "it went on from its checkpoint, with what it had learned"
    (run,) = (tmp_path / "runs").glob("*")
    assert run.name == result["run"]
    assert result["return_mean"] >= SOLVED, result


@pytest.mark.slow
def test_a_machine_that_is_no_node_learns_through_rays_client_server(cluster, tmp_path):
    words = f"--algo apex --actors 2 --envs 4 --steps 100000000 --no-promote {TIMING} --data {tmp_path}"
    with trains(cluster, CLIENT, words) as training:
        steps = until_said(training, tmp_path, lambda said: said["env_steps"])["env_steps"]
        cluster.processes("ray::RayServiceActor")[0].kill()
        until_said(training, tmp_path, lambda said: said["actor_restarts"] == 1 and said["env_steps"] > steps)
        training.terminate()
        said = training.stdout.read()
    assert training.returncode == 0, said
    assert json.loads(said.strip().splitlines()[-1])["state"] == "stopped"


def until_said(training, data, there):
    """The last line of metrics of the only run, once that is so."""
    while training.poll() is None:
        lines = [line for file in data.glob("runs/*/metrics.jsonl") for line in file.read_text().split("\n")[:-1]]
        if lines and there(said := json.loads(lines[-1])):
            return said
        time.sleep(0.2)
    raise AssertionError(training.stdout.read())
