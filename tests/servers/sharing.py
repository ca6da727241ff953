"""One server for all workers of a test run: who needs it first starts it, the run's own process ends it.

A run has a folder in which every shared server has its own, with what it is, its pid and its log, and a list of all
that any test started. A shell watches the run, and ends what is left when the run is killed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from servers.process import RUN, Process, end

Server = TypeVar("Server")
WATCH = """
while kill -0 "$1" 2>/dev/null; do sleep 2; done
for file in "$2"/started/*.pid; do [ -e "$file" ] && kill -9 -"$(cut -d' ' -f1 "$file")" 2>/dev/null; done
rm -rf "$2"
"""


def begin() -> None:
    """Called by the run's own process, before its workers are."""
    run = Path(tempfile.mkdtemp(prefix="spar-run"))
    (run / "started").mkdir()
    Process("watch", str(run), ("sh", "-c", WATCH, "watch", str(os.getpid()), str(run)), ready="").launch()
    os.environ[RUN] = str(run)


def finish() -> None:
    """No server of this run is left, nor its folder."""
    run = Path(os.environ[RUN])
    _end_all(run)
    del os.environ[RUN]
    shutil.rmtree(run)


def shared(name: str, kind: type[Server], start: Callable[[Path], Server]) -> Server:
    """The run's server of that name: `start` is called in an empty folder by whoever comes first."""
    run = Path(os.environ[RUN])
    home = run / name
    with _alone(run / f"{name}.lock"):
        there = home / "server.json"
        if not there.exists():
            home.mkdir()
            try:
                there.write_bytes(msgspec.json.encode(start(home)))
            except BaseException:
                _end_all(home)
                shutil.rmtree(home)  # the next one may try again
                raise
        return msgspec.json.decode(there.read_bytes(), type=kind)


def pids() -> set[int]:
    """Of the servers that all workers of this run share."""
    run = Path(os.environ[RUN])
    found = [file for file in run.rglob("*.pid") if file.parent != run / "started"]
    return {int(words[0]) for file in found if (words := file.read_text().split())}


def _end_all(folder: Path) -> None:
    for file in sorted(folder.rglob("*.pid")):
        end(file, gently_s=0.0)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
