"""Ape-X on a real cluster of two nodes, while everything in it is killed in turn: it still solves CartPole."""

import json
import os
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


def learner_of(data: Path) -> int | None:
    """The process that learns, once it has a checkpoint to go on from."""
    for run in (data / "runs").glob("*"):
        if (run / "checkpoint" / "state").exists():
            return int(json.loads((run / "status.json").read_text())["pid"])
    return None


def updates_in(data: Path) -> int:
    """How often its only run has learned, as last said."""
    said = [line for file in (data / "runs").glob("*/metrics.jsonl") for line in file.read_text().split("\n")[:-1]]
    return int(json.loads(said[-1])["updates"]) if said else 0


def kill(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()
        return True
    return False


def trained(cluster, data, words, killed):
    """What one command came to, while something of it is killed every five seconds."""
    always = f"--algo apex --no-promote --json --data {data} --on {cluster.url}"
    timing = "--set train.checkpoint_every_s=3 --set train.publish_every_s=1000"
    training = subprocess.Popen(
        [sys.executable, "-m", "sparring", "train", "cartpole", *f"{always} {timing} {words}".split()],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    rng, next_s = random.Random(7), 0.0
    with training:
        while training.poll() is None:
            time.sleep(0.2)
            if learner_of(data) is None or not updates_in(data):
                next_s = time.monotonic() + 1.0  # the kills begin when something was learned, and can be gone on from
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + KILL_EVERY_S
                strike(cluster, data, rng, killed)
        said = training.stdout.read()
    assert training.returncode == 0, said
    return json.loads(said.strip().splitlines()[-1])


def strike(cluster, data, rng, killed):
    """Kill an actor; as the second the shard instead, as the third the learner."""
    services = cluster.processes("ray::Actor")
    shards = [one.pid for one in services if "llvmlite" in Path(f"/proc/{one.pid}/maps").read_text()]
    actors = [one.pid for one in services if one.pid not in shards]
    kind, chosen = "actor", actors
    if killed["actor"] and not killed["shard"]:
        kind, chosen = "shard", shards
    elif killed["shard"] and not killed["learner"]:
        kind, chosen = "learner", [learner_of(data)]
        killed["updates"] = updates_in(data)
    if chosen:
        killed[kind] += kill(rng.choice(chosen))


@pytest.mark.slow
@pytest.mark.skipif("SPARRING_CHAOS" not in os.environ, reason="minutes of killing on Ray: SPARRING_CHAOS=1 runs it")
def test_cartpole_is_solved_while_actors_replay_and_learner_are_killed(tmp_path):
    pytest.importorskip("ray")
    killed = {"actor": 0, "shard": 0, "learner": 0, "updates": 0}
    with two_nodes() as cluster:
        # Of few games each, so that whole ones are played in the life of an actor: it is about 15 s.
        new = "--actors 3 --envs 2 --seed 1003 --set replay.shards=1 --minutes 0.7"
        first = trained(cluster, tmp_path, new, killed)
        assert first["learner_restarts"] == 1, killed
        assert min(killed.values()) >= 1, killed
        assert first["updates"] > killed["updates"], killed
        second = trained(cluster, tmp_path, f"--resume {first['run']} --minutes 3 --until 475", killed)
    assert second["updates"] >= first["updates"]  # the first look may find it solved
    assert second["return_mean"] >= 475, second
