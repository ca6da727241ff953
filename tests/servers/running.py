"""Real servers of the tests, each started on free ports of the loopback and stopped with its block."""

import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from servers.install import find

PATIENCE_S = 30.0


def program(name: str) -> str:
    """The server's program, or the test is skipped; its marker `servers` makes that a failure where it is required."""
    found = find(name)
    if found is None:
        pytest.skip(f"there is no {name} here: `make servers` installs it")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class ConsulAgent:
    """`consul agent -dev`: it forgets everything when it is stopped, and comes back on the same port."""

    def __init__(self, folder: Path) -> None:
        self._program, self._log = program("consul"), folder / "consul.log"
        self.port, *self._others = free_ports(4)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"consul://127.0.0.1:{self.port}"

    def start(self) -> "ConsulAgent":
        server, lan, grpc = self._others
        ports = [f"-http-port={self.port}", f"-server-port={server}", f"-serf-lan-port={lan}", f"-grpc-port={grpc}"]
        closed = ["-serf-wan-port=-1", "-dns-port=-1", "-grpc-tls-port=-1"]
        words = [self._program, "agent", "-dev", "-client=127.0.0.1", "-bind=127.0.0.1", "-log-level=warn"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*words, *ports, *closed], stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/status/leader", timeout=1) as answer,
            ):
                if len(answer.read()) > 3:
                    return self
            time.sleep(0.05)
        raise AssertionError(f"consul has no leader after {PATIENCE_S:g} s: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> "ConsulAgent":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
