"""A real `spar serve` in a process of its own, on a free port: `with serving(tmp_path) as server: server.url`.

Import it as `from serving import serving`. Standard error goes to `<data>/serve.log`, which a failed start shows.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_WITHIN_S = 9.0


@dataclass(frozen=True)
class Server:
    """A gateway that accepts connections."""

    url: str
    trust: str
    mode: str
    fingerprint: str | None
    data: Path
    process: "subprocess.Popen[bytes]"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait(STOP_WITHIN_S)

    def log(self) -> str:
        return (self.data / "serve.log").read_text()


def start(data: Path, *words: str, port: int = 0) -> Server:
    """Start it and wait until it serves; who starts it stops it."""
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "sparring", "serve", "--data", str(data), "--port", str(port), "--json", *words]
    with (data / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=data, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    said = json.loads(line) if line else {}
    if "url" not in said:
        process.kill()
        process.wait()
        raise AssertionError(f"it did not start: {said} {(data / 'serve.log').read_text()}")
    return Server(said["url"], said["trust"], said["mode"], said["fingerprint"], data, process)


def stop(server: Server, signum: int = signal.SIGTERM) -> int:
    """Its exit code, after a clean stop."""
    if server.process.poll() is None:
        server.process.send_signal(signum)
    try:
        code = server.process.wait(STOP_WITHIN_S)
    finally:
        server.process.kill()
        server.process.wait()
        if server.process.stdout is not None:
            server.process.stdout.close()
    return code


@contextmanager
def serving(data: Path, *words: str, port: int = 0) -> Iterator[Server]:
    """A gateway for as long as the block lasts."""
    server = start(data, *words, port=port)
    try:
        yield server
    finally:
        stop(server)
