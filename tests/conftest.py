"""For every test: what it started is gone when it ends, and a required part is never skipped."""

import os
import threading
from collections.abc import Iterator

import psutil
import pytest

LEFTOVER_S = 5.0


def required() -> set[str]:
    """The parts named in SPARRING_REQUIRE: a skip for want of one of them is a failure."""
    return {part for part in os.environ.get("SPARRING_REQUIRE", "").split(",") if part}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A skipped test whose marker is in SPARRING_REQUIRE fails instead."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        for part in required() & {mark.name for mark in item.iter_markers()}:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped, and SPARRING_REQUIRE names {part}: {report.longrepr}"
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
    new = [child for child in psutil.Process().children(recursive=True) if not children & {child, *_parents(child)}]
    _, alive = psutil.wait_procs(new, timeout=LEFTOVER_S)
    assert not alive, f"left running: {[(child.pid, child.cmdline()) for child in alive if child.is_running()]}"
    for thread in set(threading.enumerate()) - threads:
        if type(thread).__name__ == "GarbageCollectorThread":
            continue  # ZeroMQ's own, one for the process: it gives arrays back that were sent without a copy
        thread.join(LEFTOVER_S)
        assert not thread.is_alive(), f"left running: thread {thread.name}"
