"""`spar demo` as a person meets it: it starts, serves, trains, stops at once, and goes on where it was."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import psutil
import pytest

from sparring.config import open_data_folder

WITHIN_S = 120.0
STOP_WITHIN_S = 20.0  # the promise is 3 s; the machine may be busy


@contextmanager
def demo(data, *words):
    """The process, its address, and nothing left of it afterwards."""
    command = [sys.executable, "-m", "sparring", "demo", "--data", str(data), "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url, line + process.stdout.read()
        yield process, url.group()
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
        process.stdout.close()
        for child in family:
            child.kill()


def wait_for(condition, what):
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.1)
    pytest.fail(f"no {what} within {WITHIN_S:.0f} s")


def lines_of(data):
    return sum(path.read_text().count("\n") for path in data.glob("runs/*cartpole*/metrics.jsonl"))


def children_of(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
def test_it_serves_trains_stops_and_goes_on(tmp_path):
    slow = ("--set", "train.log_every_s=0.2")
    with demo(tmp_path, *slow) as (process, url):
        assert "It learns from you" in httpx.get(url).text
        wait_for(lambda: lines_of(tmp_path) >= 1, "line of metrics")
        second = [sys.executable, "-m", "sparring", "demo", "--data", str(tmp_path), "--port", "0"]
        refused = subprocess.run(second, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert f"a demo runs there already, process {process.pid}, at {url}" in refused.stderr
        family = children_of(process)
        assert len(family) >= 2
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_WITHIN_S) == 0
        assert not [child for child in family if child.is_running()]
        assert "goes on from here" in process.stdout.read()

    with demo(tmp_path, *slow) as (process, url):
        before = lines_of(tmp_path)
        wait_for(lambda: lines_of(tmp_path) > before or 'state": "done' in _status(tmp_path), "progress")
        assert len(list(tmp_path.glob("runs/*cartpole*"))) == 1  # the same run, resumed
        family = children_of(process)
        os.kill(process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=STOP_WITHIN_S)
        assert not alive, "an orphan goes on"


@pytest.mark.slow
def test_a_stopped_demo_leaves_no_process_of_its_leagues(tmp_path):
    open_data_folder(tmp_path)
    run = tmp_path / "runs" / "solved"
    (run / "checkpoint").mkdir(parents=True)
    (run / "checkpoint" / "state").touch()
    (run / "run.json").write_text('{"game": "cartpole", "algo": "ppo", "started_at_ms": 1}')
    (run / "status.json").write_text('{"state": "done"}')  # so that the leagues begin at once
    with demo(tmp_path) as (process, _):

        def services():
            return [one for one in children_of(process) if "sparring.hosts.worker" in one.cmdline()]

        wait_for(lambda: len(services()) >= 6, "services of both leagues")
        wait_for(lambda: len(list(tmp_path.glob("runs/*/metrics.jsonl"))) >= 2, "two learners")
        family = children_of(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_WITHIN_S) == 0
        assert not [child.cmdline() for child in family if child.is_running()]


def _status(data):
    return "".join(path.read_text() for path in data.glob("runs/*cartpole*/status.json"))


@pytest.mark.slow
def test_a_gateway_that_dies_is_started_again(tmp_path):
    with demo(tmp_path, "--no-train") as (process, url):
        (gateway,) = children_of(process)
        gateway.kill()
        wait_for(lambda: [c for c in children_of(process) if c.pid != gateway.pid], "new gateway")

        def answers():
            try:
                return httpx.get(f"{url}/healthz").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(answers, "answer")
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_WITHIN_S) == 0


def test_a_taken_port_is_said(tmp_path):
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        command = [sys.executable, "-m", "sparring", "demo", "--data", str(tmp_path), "--port", str(port)]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"port {port} is taken" in refused.stderr
