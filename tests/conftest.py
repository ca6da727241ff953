"""For every test: what it started is gone when it ends, a required part is never skipped, and servers are shared.

A test that asks for `cassandra_server`, `s3_server`, `kinesalite_server`, `moto_server` or `spark_server` gets one that
all workers of the run share, started when the first asks: it takes a keyspace, bucket or stream of its own, and kills
nothing. A test that kills a server starts its own, by `servers.running`.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from servers import aws_servers, cassandra_cluster, sharing, spark_cluster
from servers.aws_servers import S3, Kinesis
from servers.cassandra_cluster import Cassandra
from servers.running import installed
from servers.spark_cluster import Spark
from serving import Server

LEFTOVER_S = 30.0  # the machine may be busy
REQUEST_S = 60.0  # for an answer, where a test says nothing else
LOG_CHARACTERS = 4_000  # of a server's log, that a failed test shows
DRIVERS_LOOPS = ("event_loop", "asyncio_thread")  # of the Cassandra driver, for as long as the process lives


def pytest_configure(config: pytest.Config) -> None:
    for part in ("connect", "read", "write", "pool"):  # httpx waits 5 s unless it is told otherwise
        setattr(DEFAULT_TIMEOUT_CONFIG, part, REQUEST_S)
    if not hasattr(config, "workerinput"):
        sharing.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        sharing.finish()


def required() -> set[str]:
    """The parts named in SPARRING_REQUIRE: a skip for want of one of them is a failure; with "all", every skip is."""
    return {part for part in os.environ.get("SPARRING_REQUIRE", "").split(",") if part}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A skipped test whose marker is in SPARRING_REQUIRE fails instead. A failed test shows its servers' logs."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Server):
                report.sections.append((f"log of {name}, {value.state()}", value.log()[-LOG_CHARACTERS:]))
    if report.skipped and not hasattr(report, "wasxfail"):
        for part in required() & {"all", *(mark.name for mark in item.iter_markers())}:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped, and SPARRING_REQUIRE names {part}: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A file that is skipped as a whole (importorskip) has no tests with markers: its text is searched for them."""
    report = yield
    if report.skipped and isinstance(collector, pytest.Module):
        text = collector.path.read_text()
        for part in required():
            if part == "all" or f"mark.{part}" in text:
                report.outcome = "failed"
                report.longrepr = (
                    f"{collector.nodeid} was skipped, and SPARRING_REQUIRE names {part}: {report.longrepr}"
                )
    return report


def _parents(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.parents()
    except psutil.NoSuchProcess:  # gone meanwhile
        return []


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No child process and no thread outlives the test that started it."""
    threads, children = set(threading.enumerate()), set(psutil.Process().children(recursive=True))
    yield
    # What a process from before starts (the browser of the whole session, say) is that process's own affair.
    # A server that all tests share may have been started by this one.
    others = {one.pid for one in children} | sharing.pids()
    now = psutil.Process().children(recursive=True)
    new = [child for child in now if not others & {child.pid, *(one.pid for one in _parents(child))}]
    _, alive = psutil.wait_procs(new, timeout=LEFTOVER_S)
    assert not alive, f"left running: {[(child.pid, child.cmdline()) for child in alive if child.is_running()]}"
    for thread in set(threading.enumerate()) - threads:
        if type(thread).__name__ == "GarbageCollectorThread" or thread.name in DRIVERS_LOOPS:
            continue  # ZeroMQ's own gives arrays back that were sent without a copy; each is one for the process
        thread.join(LEFTOVER_S)
        assert not thread.is_alive(), f"left running: thread {thread.name}"


@pytest.fixture(scope="session")
def cassandra_server() -> Cassandra:
    """One node, for the whole run."""

    def start(folder: Path) -> Cassandra:
        ring = cassandra_cluster.described(folder)
        cassandra_cluster.start(ring)
        return ring

    with installed():
        return sharing.shared("cassandra", Cassandra, start)


@pytest.fixture(scope="session")
def s3_server() -> S3:
    """versitygw, for the whole run."""

    def start(folder: Path) -> S3:
        described = aws_servers.s3(folder)
        described.server.start()
        return described

    with installed():
        return sharing.shared("s3", S3, start)


@pytest.fixture(scope="session")
def kinesalite_server() -> Kinesis:
    """kinesalite, for the whole run."""
    return _kinesis("kinesalite")


@pytest.fixture(scope="session")
def moto_server() -> Kinesis:
    """moto in a process of its own, for the whole run; it plays the rest of AWS, too."""
    return _kinesis("moto")


def _kinesis(kind: aws_servers.Kind) -> Kinesis:
    def start(folder: Path) -> Kinesis:
        described = aws_servers.kinesis(folder, kind)
        described.server.start()
        return described

    with installed():
        return sharing.shared(kind, Kinesis, start)


@pytest.fixture(scope="session")
def spark_server() -> Spark:
    """A master and one worker of two cores, for the whole run."""

    def start(folder: Path) -> Spark:
        cluster = spark_cluster.described(folder)
        spark_cluster.start(cluster)
        return cluster

    with installed():
        return sharing.shared("spark", Spark, start)


@pytest.fixture
def local_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment holds the credentials that all local servers take, and nothing of the person's own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name, value in aws_servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # it keeps the credentials of the first test that made a client
