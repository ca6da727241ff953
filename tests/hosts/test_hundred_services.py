"""A hundred services as real processes: started, called and stopped, and nothing of them is left."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
from host_contract import ONE
from host_services import Worker

from sparring.hosts.protocol import open_host
from sparring.services.discovery import Local
from sparring.services.solver import Solver

COUNT = 100


@pytest.fixture
def folder(monkeypatch):
    """Where services of this test alone meet; its name is short, for sockets lie in it."""
    path = Path(tempfile.mkdtemp(prefix="spar"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    shutil.rmtree(path)


def held(folder):
    """What this process and the system hold for services: descriptors, mapped memory, files, Unix sockets."""
    gc.collect()
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:sparring" in line]
    sockets = [line for line in Path("/proc/net/unix").read_text().splitlines() if f" {folder}" in line]
    files = [path for path in folder.rglob("*") if path.is_file()]
    named = [name for name in os.listdir("/dev/shm") if "spar" in name]
    return psutil.Process().num_fds(), len(mapped), len(sockets), len(files), len(named)


@pytest.mark.slow
def test_a_hundred_processes_are_started_called_and_stopped_and_leave_nothing(folder, tmp_path):
    with open_host("local://") as host:  # what a first host loads stays
        host.start(Worker, "worker", 1, ONE, {})[0].ask("add", np.ones(100_000), 1.0).result()
    before, others = held(folder), set(psutil.Process().children())
    with open_host("local://", tmp_path) as host:
        handles = host.start(Worker, "worker", COUNT, ONE, {"word": "hi"})
        shared = host.share(np.ones(100_000))
        asked = [handle.ask("add", shared, np.ones(100_000)) for handle in handles]
        assert [one.result(120).sum() for one in asked] == [200_000.0] * COUNT
        pids = {handle.ask("who").result()["pid"] for handle in handles}
        assert len(pids) == COUNT
        with Solver(Local(host._folder.path)) as solver:  # as their own callers would, too
            seen = {solver.retrieve("worker", "who")["pid"] for _ in range(3 * COUNT)}
        assert seen == pids
        del shared, asked
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert set(psutil.Process().children()) <= others
    # Fewer is no leak: a descriptor that an earlier test of this process left open may be closed meanwhile.
    assert all(now <= then for now, then in zip(held(folder), before, strict=True))
    assert len(list(tmp_path.glob("worker.*.log"))) == COUNT
