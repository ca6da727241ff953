"""One server for all workers of a test run: who needs it first starts it, the run's own process ends it.

A run has a folder in which every started server has its own, with what it is, its pid and its log.
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

from servers.process import Process, end

RUN = "SPARRING_TEST_RUN"  # the run's folder, for its workers
Server = TypeVar("Server")
# A run that is killed ends nothing itself.
WATCH = """
while kill -0 "$1" 2>/dev/null; do sleep 2; done
for file in "$2"/*/*.pid "$2"/*/*/*.pid; do [ -e "$file" ] && kill -9 -"$(cut -d' ' -f1 "$file")" 2>/dev/null; done
rm -rf "$2"
"""


def begin() -> None:
    """Called by the run's own process, before its workers are."""
    os.environ[RUN] = tempfile.mkdtemp(prefix="spar-run")
    (Path(os.environ[RUN]) / "owner").write_text(str(os.getpid()))


def finish() -> None:
    """No server of this run is left, nor its folder."""
    run = Path(os.environ.pop(RUN))
    _end_all(run)
    shutil.rmtree(run)


def shared(name: str, kind: type[Server], start: Callable[[Path], Server]) -> Server:
    """The run's server of that name: `start` is called in an empty folder by whoever comes first."""
    run = Path(os.environ[RUN])
    home = run / name
    with _alone(run / f"{name}.lock"):
        there = home / "server.json"
        if not there.exists():
            _watch(run)
            home.mkdir()
            try:
                there.write_bytes(msgspec.json.encode(start(home)))
            except BaseException:
                _end_all(home)
                shutil.rmtree(home)  # the next one may try again
                raise
        return msgspec.json.decode(there.read_bytes(), type=kind)


def _watch(run: Path) -> None:
    words = ("sh", "-c", WATCH, "watch", (run / "owner").read_text(), str(run))
    with _alone(run / "watch.lock"):
        watch = Process("watch", str(run), words, ready="")
        if watch.pid is None:
            watch.launch()


def _end_all(folder: Path) -> None:
    for file in sorted(folder.rglob("*.pid")):
        end(file, gently_s=0.0)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
