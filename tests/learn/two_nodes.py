"""A real Ray cluster of two nodes on this machine: two raylets, the second joined by the head's address.

Both have loopback addresses of their own and a token that nobody else knows, and a folder of their own, so that no
other program that looks for a cluster here finds this one.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

HEAD, SECOND = "127.0.0.2", "127.0.0.3"
UP_S = 150.0  # Ray's own start takes long where others are busy
RAY = str(Path(sys.executable).parent / "ray")


@dataclass(frozen=True)
class Cluster:
    """Where it is, and whose descendants its actors are."""

    url: str
    environment: dict[str, str]
    roots: tuple[int, ...]

    def processes(self, title: str) -> list[psutil.Process]:
        """Descendants of its nodes whose title begins so."""
        found = []
        for root in self.roots:
            for one in psutil.Process(root).children(recursive=True):
                with suppress(psutil.Error):
                    if " ".join(one.cmdline()).startswith(title):
                        found.append(one)
        return found


@contextmanager
def two_nodes() -> Iterator[Cluster]:
    """The cluster; all of it ends with the block."""
    with socket.socket() as free:
        free.bind((HEAD, 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: sockets lie in it
    environment = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # a host of this process may have said no, to stay on loopback
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "180",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        room = ["--num-cpus=8", "--object-store-memory=300000000", "--block"]
        head = ["--head", f"--port={port}", f"--node-ip-address={HEAD}", f"--temp-dir={folder}"]
        started.append(_start([*head, "--include-dashboard=false", *room], environment, folder / "head.log"))
        _await_up(started[-1], folder / "head.log")
        second = [f"--address={HEAD}:{port}", f"--node-ip-address={SECOND}"]
        started.append(_start([*second, *room], environment, folder / "second.log"))
        _await_up(started[-1], folder / "second.log")
        roots = tuple(one.pid for one in started)
        yield Cluster(f"ray://{HEAD}:{port}", {**os.environ, **environment}, roots)
    finally:
        _end(started)
        shutil.rmtree(folder, ignore_errors=True)


def _start(words: list[str], environment: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        return subprocess.Popen(
            [RAY, "start", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def _await_up(process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + UP_S
    while b"block forever" not in log.read_bytes():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.2)


def _end(started: "list[subprocess.Popen[bytes]]") -> None:
    """The second node first; whoever is left of those that we started is killed."""
    for process in reversed(started):
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for one in [*below, process]:
            with suppress(psutil.Error, ProcessLookupError):
                one.kill()
        psutil.wait_procs(below, timeout=5)
        process.wait()
