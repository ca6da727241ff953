"""Real servers of the tests, each started on free ports of the loopback and stopped with its block."""

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from servers import aws_servers, cassandra_cluster, spark_cluster
from servers.aws_servers import S3, Kinesis
from servers.cassandra_cluster import Cassandra
from servers.install import find
from servers.process import NotThere, Process, free_ports
from servers.spark_cluster import Spark

__all__ = [
    *("S3", "Cassandra", "ConsulAgent", "Kinesis", "Spark"),
    *("cassandra", "free_ports", "kinesis", "redis", "s3", "spark"),
]
PATIENCE_S = 30.0


def program(name: str) -> str:
    """The server's program, or the test is skipped; its marker `servers` makes that a failure where it is required."""
    found = find(name)
    if found is None:
        pytest.skip(f"there is no {name} here: `make servers` installs it")
    return found


@contextmanager
def installed() -> Iterator[None]:
    """A server that is not there skips the test, as `program` does."""
    try:
        yield
    except NotThere as missing:
        pytest.skip(str(missing))


@contextmanager
def cassandra(folder: Path, nodes: int = 1, *, sync: cassandra_cluster.Sync = "batch") -> Iterator[Cassandra]:
    """A cluster of one node or several, with nothing in it."""
    with installed():
        cluster = cassandra_cluster.described(folder, nodes, sync=sync)
    with stopped_after(*cluster.nodes):
        cassandra_cluster.start(cluster)
        yield cluster


@contextmanager
def s3(folder: Path) -> Iterator[S3]:
    """An S3 server without a bucket."""
    with installed():
        described = aws_servers.s3(folder)
    with stopped_after(described.server):
        described.server.start()
        yield described


@contextmanager
def kinesis(folder: Path, kind: aws_servers.Kind = "kinesalite", *, keep: bool = False) -> Iterator[Kinesis]:
    """A Kinesis server without a stream; with `keep`, kinesalite has its streams again after a restart."""
    with installed():
        described = aws_servers.kinesis(folder, kind, keep=keep)
    with stopped_after(described.server):
        described.server.start()
        yield described


@contextmanager
def spark(folder: Path, workers: int = 1, *, cores: int = 2, memory: str = "1g") -> Iterator[Spark]:
    """A standalone master and its workers."""
    with installed():
        cluster = spark_cluster.described(folder, workers, cores=cores, memory=memory)
    with stopped_after(cluster.master, *cluster.workers):
        spark_cluster.start(cluster)
        yield cluster


@contextmanager
def redis(folder: Path, *options: str) -> Iterator[Process]:
    """A Redis on 127.0.0.1 that writes nothing to the disk; `options` are words of its command. `ready` is its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    port, words = free_ports(1)[0], ("--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *options)
    described = Process(
        "redis", str(folder), (program("redis-server"), "--port", str(port), *words), f"redis://127.0.0.1:{port}"
    )
    with stopped_after(described):
        yield described.start()


@contextmanager
def stopped_after(*processes: Process) -> Iterator[None]:
    """Whatever happens, none of them is left: what a test keeps in a server is not worth a gentle end."""
    try:
        yield
    finally:
        for process in reversed(processes):
            process.kill()


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
