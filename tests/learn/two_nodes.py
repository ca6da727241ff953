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
CLIENT = f"ray://{HEAD}:10001"  # for who is no node
UP_S = 240.0  # Ray's own start takes long where others are busy
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
        "RAY_prestart_worker_first_driver": "0",  # else every core of each node imports Ray before anything begins
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        room = ["--num-cpus=8", "--object-store-memory=300000000", "--block"]
        head = ["--head", f"--port={port}", f"--node-ip-address={HEAD}", f"--temp-dir={folder}"]
        second = [f"--address={HEAD}:{port}", f"--node-ip-address={SECOND}"]
        for words in ([*head, "--include-dashboard=false", *room], [*second, *room]):
            _bring_up(words, environment, folder / f"{len(started)}.log", started)
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


def _bring_up(
    words: list[str], environment: dict[str, str], log: Path, started: "list[subprocess.Popen[bytes]]"
) -> None:
    """Ray gives its parts half a minute to find each other, which on a busy machine may take another try."""
    until = time.monotonic() + UP_S
    while True:
        started.append(_start(words, environment, log))
        while started[-1].poll() is None:
            if b"block forever" in log.read_bytes():
                return
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        assert time.monotonic() < until, log.read_text()
        _end([started.pop()])


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
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # parts of one that ended by itself
        process.wait()
