"""A real `spar serve` in a process of its own, on a free port: `with serving(tmp_path) as server: server.url`.

`inside(tmp_path, requests_per_s=5)` serves from a thread of this process instead, which starts in no time.
Import them as `from serving import inside, serving`. The log is `<data>/serve.log`, which a failed start shows.
"""

import asyncio
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sparring.config import Config, GatewayConfig
from sparring.games.catalogue import open_game
from sparring.games.spec import GameSpec
from sparring.gateway.inference import InferenceServer
from sparring.gateway.server import GatewayServer, serve
from sparring.nets.chooser import ActRequest, Decision
from sparring.registry import open_registry
from sparring.wire.messages import FromGateway

STOP_WITHIN_S = 20.0  # the promise is 3 s; the machine may be busy


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

    def state(self) -> str:
        """Whether it runs, and how many files it has open of how many it may."""
        code = self.process.poll()
        if code is not None:
            return f"ended with {code}"
        limit, _ = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        return f"running, {len(os.listdir(f'/proc/{self.process.pid}/fd'))} of {limit} files open"

    def log(self) -> str:
        return (self.data / "serve.log").read_text()


def start(data: Path, *words: str, port: int = 0) -> Server:
    """Start it and wait until it serves; who starts it stops it."""
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "sparring", "serve", "--data", str(data), "--port", str(port), "--json", *words]
    with (data / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=data,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    said = json.loads(line) if line else {}
    if "url" not in said:
        process.kill()
        process.wait()
        process.stdout.close()
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


@contextmanager
def inside(data: Path, games: tuple[str, ...] = (), **gateway: object) -> Iterator[GatewayServer]:
    """A gateway on a thread of this process, with those games and settings of [gateway]."""
    config = Config(data=str(data), games=games, gateway=replace(GatewayConfig(port=0), **gateway))  # type: ignore[arg-type]
    told: queue.Queue[GatewayServer] = queue.Queue(1)
    runner = threading.Thread(target=serve, args=(config, told.put), name="gateway")
    runner.start()
    try:
        running = told.get(timeout=60)
        try:
            yield running
        finally:
            running.stop()
    finally:
        runner.join(STOP_WITHIN_S)


def decided_together(data: Path, spec: GameSpec, request: ActRequest, callers: int = 20) -> list[Decision]:
    """What an inference server that has just begun answers to callers who come at once."""

    async def together(inference: InferenceServer) -> list[Decision]:
        return await asyncio.gather(*[inference.decide(spec, 0, request) for _ in range(callers)])

    with open_registry(f"file://{data}/models") as registry:
        inference = InferenceServer(registry, lambda spec, n: open_game(spec.id, n))
        try:
            return asyncio.run(together(inference))
        finally:
            inference.close()


def decode_answer(frame: str | bytes) -> FromGateway:
    """A message that the gateway sent on a play socket."""
    kind = msgspec.json if isinstance(frame, str) else msgspec.msgpack
    answer: FromGateway = kind.decode(frame, type=FromGateway)
    return answer
