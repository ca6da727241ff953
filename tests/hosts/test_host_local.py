"""The host of this machine's processes: the contract, and what holds of it alone."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from host_contract import *  # noqa: F403
from host_contract import ONE, happened, until
from host_services import Broken, Stubborn, Worker

from sparring.errors import ConfigError
from sparring.hosts.call_queue import MAX_UNDER_WAY
from sparring.hosts.local import STOP_S
from sparring.hosts.protocol import open_host
from sparring.services.discovery import default_folder
from sparring.services.errors import Overloaded


@pytest.fixture(scope="module")
def kept():
    with open_host("local://") as opened:
        yield opened


@pytest.fixture
def host():
    with open_host("local://") as opened:
        yield opened


def alive(pids):
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def program(tmp_path):
    """A program with a host, and the numbers of its instances' processes."""
    with subprocess.Popen([sys.executable, Path(__file__).with_name("host_program.py"), tmp_path]) as running:
        try:
            until((tmp_path / "pids").exists)
            yield running, json.loads((tmp_path / "pids").read_text())
        finally:
            running.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_no_instance_outlives_its_host_whatever_ends_it(program, how):
    running, pids = program
    assert len(alive(pids)) == 2
    running.send_signal(how)
    running.wait()
    until(lambda: not alive(pids))


def test_what_a_killed_host_left_behind_is_swept_away(program):
    running, pids = program
    (folder,) = [
        path.parent for path in default_folder().glob("h-*/worker.0-*.json") if f'"pid":{pids[0]}' in path.read_text()
    ]
    running.kill()
    running.wait()
    until(lambda: not alive(pids))
    with open_host("local://"):  # another test's may have been first
        assert not folder.exists()


@pytest.mark.parametrize("has_pidfd", [True, False], ids=["pidfd", "no-pidfd"])
def test_one_that_will_not_end_is_killed_in_time(host, monkeypatch, has_pidfd):
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    (stubborn,) = host.start(Stubborn, "stubborn", 1, ONE, {})
    pid = stubborn.ask("who").result()
    began = time.monotonic()
    host.close()
    assert time.monotonic() - began < 3 * STOP_S
    assert not alive([pid])


def test_an_instance_at_work_is_stopped_in_time(host):
    (worker,) = host.start(Worker, "worker", 1, ONE, {})
    worker.ask("who").result()
    worker.ask("sleep", 60.0)
    began = time.monotonic()
    host.close()
    assert time.monotonic() - began < 3 * STOP_S


def test_what_an_instance_prints_is_kept(tmp_path):
    with open_host("local://", tmp_path) as host:
        first, second = host.start(Worker, "worker", 2, ONE, {"word": "hello"})
        for worker in (first, second):
            worker.ask("who").result()
        host.start(Broken, "broken", 1, ONE, {})
        assert "there is no larder" in happened(host, "died")[-1].why
    assert (tmp_path / "worker.0.log").read_text() == "hello 0 begins\n"
    assert (tmp_path / "worker.1.log").read_text() == "hello 1 begins\n"
    assert "there is no larder" in (tmp_path / "broken.0.log").read_text()


def test_a_worker_imports_no_more_than_it_needs(host):
    (worker,) = host.start(Worker, "worker", 1, ONE, {})
    assert worker.ask("modules", ["torch", "ray", "onnxruntime", "pandas"]).result() == []


def test_no_more_calls_are_under_way_than_can_be_held(host):
    (worker,) = host.start(Worker, "worker", 1, ONE, {})
    pid = worker.ask("who").result()["pid"]
    os.kill(pid, signal.SIGSTOP)  # until all are asked, however long a busy machine takes for that
    asked = [worker.ask("who") for _ in range(MAX_UNDER_WAY)]
    with pytest.raises(Overloaded, match=f"{MAX_UNDER_WAY} calls are under way"):
        worker.ask("who")
    os.kill(pid, signal.SIGCONT)
    assert asked[0].result()["index"] == 0


def test_nothing_is_left_after_many_services_were_started_called_and_stopped():
    gc.collect()
    here = psutil.Process()
    others, folders, before = set(here.children()), [], None
    for _ in range(3):
        with open_host("local://") as host:
            folders.append(host._folder.path)
            handles = host.start(Worker, "worker", 3, ONE, {})
            shared = host.share(np.ones(100_000))
            asked = [handle.ask("add", shared, np.ones(100_000)) for handle in handles]
            assert [one.result().sum() for one in asked] == [200_000.0] * 3
            os.kill(handles[0].ask("who").result()["pid"], signal.SIGKILL)
            assert handles[0].ask("who").result()["generation"] == 1
            del shared, asked
        gc.collect()
        open_now = here.num_fds()
        before = before or open_now
    assert open_now <= before
    assert set(here.children()) <= others
    assert not any(folder.exists() for folder in folders)


def test_an_unknown_host_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"'lokal://' is no host\. Choose local://, ray://auto or ray://HOST:PORT"):
        open_host("lokal://")
