"""Ape-X on a real cluster of two nodes, while everything in it is killed in turn: it still solves CartPole."""

import json
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from two_nodes import two_nodes

KILL_EVERY_S = 5.0
SHARD_KILL, LEARNER_KILL = 2, 3  # which of the kills they are; all others are of actors


def learner_of(data: Path) -> int | None:
    """The process that learns, once it has a checkpoint to go on from."""
    for run in (data / "runs").glob("*"):
        if (run / "checkpoint" / "state").exists():
            return int(json.loads((run / "status.json").read_text())["pid"])
    return None


def kill(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()
        return True
    return False


@pytest.mark.slow
def test_cartpole_is_solved_while_actors_replay_and_learner_are_killed(tmp_path):
    pytest.importorskip("ray")
    rng, killed = random.Random(7), {"actor": 0, "shard": 0, "learner": 0}
    words = f"--algo apex --actors 2 --seed 1003 --set replay.shards=1 --no-promote --json --data {tmp_path}"
    timing = "--set train.checkpoint_every_s=3 --set train.publish_every_s=1000 --minutes 3.5 --until 475"
    with two_nodes() as cluster:
        training = subprocess.Popen(
            [sys.executable, "-m", "sparring", "train", "cartpole", *words.split(), *timing.split()]
            + ["--on", cluster.url],
            env=cluster.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        next_s, number = 0.0, 0
        while training.poll() is None:
            time.sleep(0.2)
            if learner_of(tmp_path) is None:
                next_s = time.monotonic() + 1.0  # it has begun to play; now the kills begin
                continue
            if time.monotonic() < next_s:
                continue
            next_s, number = time.monotonic() + KILL_EVERY_S, number + 1
            if number == LEARNER_KILL:
                killed["learner"] += kill(learner_of(tmp_path) or 0)
                continue
            services = cluster.processes("ray::Actor")
            shards = [one.pid for one in services if "llvmlite" in Path(f"/proc/{one.pid}/maps").read_text()]
            actors = [one.pid for one in services if one.pid not in shards]
            kind, chosen = ("shard", shards) if number == SHARD_KILL else ("actor", actors)
            if chosen:
                killed[kind] += kill(rng.choice(chosen))
        said = json.loads(training.stdout.read().strip().splitlines()[-1])
        training.stdout.close()
    assert training.returncode == 0, said
    assert min(killed.values()) >= 1, killed
    assert said["learner_restarts"] == 1
    assert said["return_mean"] >= 475, said
