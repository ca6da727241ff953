"""`spar train --keep-alive`: a learner that is killed is started again, and ends with its supervisor."""

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

PATIENCE_S = 120.0
ENDLESS = "train cartpole --algo ppo --envs 4 --steps 100000000 --no-promote --keep-alive"
TIMING = "--set train.checkpoint_every_s=0.2 --set train.log_every_s=0.2 --set registry.gate_episodes=1"


@contextmanager
def training(data, *more):
    words = [*ENDLESS.split(), *TIMING.split(), "--data", str(data), *more]
    spar = [sys.executable, "-m", "sparring", *words]
    with subprocess.Popen(spar, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def learner(data, before=None):
    """The process that learns, once it has kept a checkpoint; its updates."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for run in (data / "runs").glob("*"):
            with suppress(FileNotFoundError, psutil.NoSuchProcess, IndexError):
                found = psutil.Process(json.loads((run / "status.json").read_text())["pid"])
                line = (run / "metrics.jsonl").read_text().splitlines()[-1]
                if found.pid != before and (run / "checkpoint" / "state").exists():
                    return found, json.loads(line)["updates"]
        time.sleep(0.05)
    raise AssertionError("nobody learns")


@pytest.mark.slow
def test_it_goes_on_from_its_checkpoint_and_ends_in_good_order_when_asked_to(tmp_path):
    with training(tmp_path, "--json") as parent:
        first, _ = learner(tmp_path)
        first.kill()
        second, updates = learner(tmp_path, first.pid)
        assert updates > 0
        parent.send_signal(signal.SIGTERM)
        said, told = parent.communicate(timeout=PATIENCE_S)
        assert not second.is_running()
    assert parent.returncode == 0, told
    result = json.loads(said.strip().splitlines()[-1])
    assert (result["learner_restarts"], result["state"]) == (1, "stopped")
    assert result["updates"] >= updates
    (run,) = (tmp_path / "runs").iterdir()
    assert f"killed by signal 9: it goes on with run {run.name}" in told


@pytest.mark.slow
def test_a_learner_ends_with_its_supervisor(tmp_path):
    with training(tmp_path) as parent:
        found, _ = learner(tmp_path)
        parent.kill()
        found.wait(timeout=PATIENCE_S)


@pytest.mark.parametrize("json_asked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_error_is_told_once(json_asked, tmp_path):
    more = ["--json"] if json_asked else []
    words = ["train", "cartpole", "--keep-alive", "--algo-set", "learning_rat=1", "--data", str(tmp_path), *more]
    spar = [sys.executable, "-m", "sparring", *words]
    ended = subprocess.run(spar, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("learning_rate") == 1
    assert ended.stdout.count("learning_rate") == json_asked
