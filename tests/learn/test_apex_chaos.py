"""Ape-X on a real cluster of two nodes, while everything in it is killed in turn: it still solves CartPole."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from hosted_runs import is_shard
from two_nodes import two_nodes

KILL_EVERY_S = 5.0
# Few games each, so that whole ones are played in the life of an actor: it is about 15 s.
RUN = "--algo apex --actors 3 --envs 2 --seed 1003 --set replay.shards=1 --steps 100000 --until 475 --no-promote"
TIMING = "--set train.checkpoint_every_s=3 --set train.publish_every_s=1000 --set train.log_every_s=0.5"


class Chaos:
    """Kills one part of a run every five seconds: first the learner, then the shard, then actors, to the end."""

    def __init__(self, cluster, data):
        self._cluster, self._data, self._rng, self._next_s = cluster, data, random.Random(7), 0.0
        self.killed = Counter()
        self.updates = 0  # that the learner had made when it was killed

    def look(self):
        """Kill whom it is time to kill, once there is a checkpoint, and something was learned since the last death."""
        learner, said = self._learner()
        if learner is None or time.monotonic() < self._next_s:
            return
        kind = "learner" if not self.killed["learner"] else "actor" if self.killed["shard"] else "shard"
        with suppress(psutil.NoSuchProcess, FileNotFoundError):  # one that has just ended: look again
            chosen = [learner]
            if kind != "learner":
                chosen = [one for one in self._cluster.processes("ray::Actor") if is_shard(one) == (kind == "shard")]
            if chosen:
                self._rng.choice(chosen).kill()
                self.killed[kind] += 1
                self._next_s = time.monotonic() + KILL_EVERY_S
                self.updates = said["updates"] if kind == "learner" else self.updates

    def _learner(self):
        """The process that learns, and what it said last, once it has learned something and kept it."""
        for run in (self._data / "runs").glob("*"):
            lines = (run / "metrics.jsonl").read_text().split("\n")[:-1] if (run / "metrics.jsonl").exists() else []
            said = json.loads(lines[-1]) if lines else {"updates": 0}
            with suppress(psutil.NoSuchProcess):
                learner = psutil.Process(json.loads((run / "status.json").read_text())["pid"])
                if said["updates"] > self.updates and (run / "checkpoint" / "state").exists():
                    return learner, said
        return None, {}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("SPARRING_CHAOS" not in os.environ, reason="minutes of killing on Ray: SPARRING_CHAOS=1 runs it")
def test_cartpole_is_solved_while_actors_replay_and_learner_are_killed(tmp_path):
    pytest.importorskip("ray")
    with two_nodes() as cluster:
        chaos = Chaos(cluster, tmp_path)
        words = f"train cartpole {RUN} {TIMING} --json --data {tmp_path} --on {cluster.url}"
        with subprocess.Popen(
            [sys.executable, "-m", "sparring", *words.split()],
            env=cluster.environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as training:
            try:
                while training.poll() is None:
                    time.sleep(0.2)
                    chaos.look()
                said = training.stdout.read()
            finally:
                training.terminate()
    assert training.returncode == 0, said
    result = json.loads(said.strip().splitlines()[-1])
    assert chaos.killed["actor"] >= 1, chaos.killed
    assert (chaos.killed["shard"], chaos.killed["learner"], result["learner_restarts"]) == (1, 1, 1), chaos.killed
    (run,) = (tmp_path / "runs").glob("*")
    assert run.name == result["run"]
    updates = [json.loads(line)["updates"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert min(updates) < chaos.updates <= max(updates), "it went on from a checkpoint, with what it had learned"
    assert result["updates"] > chaos.updates
    assert result["return_mean"] >= 475, result
