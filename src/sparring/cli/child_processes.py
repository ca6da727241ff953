"""Child processes, supervised: started with their log, started again when they die, stopped by a deadline."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
STOP_S = 1.5  # for a last checkpoint; the one before is at most some seconds old
STEADY_S = 60.0  # a child that lived this long starts again without a wait
MAX_LOG_BYTES = 8 << 20  # then it becomes <name>.log.1

# The words after `spar`, asked for at every start with the number of failures in a row; None: not now.
Command = Callable[[int], list[str] | None]


@dataclass(slots=True)
class Child:
    """One process to keep alive."""

    name: str
    command: Command
    nice: int = 0
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    next_s: float = 0.0  # not started before
    failures: int = 0


class Children:
    """A context manager: leaving it stops every child. Each is tethered to this process (see tethered.py)."""

    def __init__(self, logs: Path, say: Callable[[str], None]) -> None:
        self.logs, self.say = logs, say
        self._children: dict[str, Child] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(STOP_S)

    def add(self, name: str, command: Command, nice: int = 0) -> None:
        """Keep `command` running from the next turn on."""
        self._children.setdefault(name, Child(name, command, nice))

    def alive(self, name: str) -> bool:
        """Whether that child runs now."""
        process = self._children[name].process
        return process is not None and process.poll() is None

    def turn(self, now_s: float) -> None:
        """Notice who ended, and start who should run. Call it a few times a second."""
        for child in self._children.values():
            if child.process is not None and (code := child.process.poll()) is not None:
                self._ended(child, code, now_s)
            if child.process is None and now_s >= child.next_s:
                self._start(child, now_s)

    def stop(self, deadline_s: float) -> None:
        """Ask every child to end, and end those that have not by the deadline."""
        running = [child.process for child in self._children.values() if child.process is not None]
        for process in running:
            process.terminate()
        until = time.monotonic() + deadline_s
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._children.clear()

    def _start(self, child: Child, now_s: float) -> None:
        words = child.command(child.failures)
        if words is None:
            child.next_s = now_s + FIRST_WAIT_S
            return
        path = self.logs / f"{child.name}.log"
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with path.open("ab") as log:
            child.process = subprocess.Popen(
                [sys.executable, "-m", "sparring.cli.parent_watch", str(child.nice), *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the parent, which then asks its children in good order
            )
        child.started_s = now_s

    def _ended(self, child: Child, code: int, now_s: float) -> None:
        assert child.process is not None
        if child.process.stdin is not None:
            child.process.stdin.close()
        child.process = None
        if code == 0:
            child.failures, child.next_s = 0, now_s
            return
        child.failures = 1 if now_s - child.started_s >= STEADY_S else child.failures + 1
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (child.failures - 1))
        child.next_s = now_s + wait_s
        self.say(f"{child.name} ended with code {code}; again in {wait_s:.0f} s. See {self.logs / child.name}.log")
