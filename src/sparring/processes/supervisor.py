"""Child processes under supervision: started with a log, restarted by a policy, stopped by a deadline.

A ChildProcess is one process; a SupervisedProcess is one that is started again; a Supervisor has several of them.
Each child leads a session of its own, so that Ctrl-C reaches the parent alone, which then stops its children in good
order, and so that whatever a child started ends with it. Its standard input is a pipe that ends with the parent
(parent_watch.py).
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

MAX_LOG_BYTES, KEPT_LOG_BYTES = 8 << 20, 256 << 10  # a log that grew too long is cut to its end
LAST_LINES, LAST_BYTES = 8, 4000
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process is started."""

    words: Sequence[str]  # after `python -m`
    message: bytes = b""  # written to its standard input, as far as its pipe takes it (see ChildProcess.send)
    descriptors: tuple[int, ...] = ()  # that it inherits
    environment: dict[str, str] = field(default_factory=dict)  # beside ours
    answers: bool = False  # its standard output is a pipe to us, and not its log


class ProcessLog:
    """What a process prints, through its restarts; in an unnamed file where no path is given."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.file: IO[bytes] = tempfile.TemporaryFile(mode="a+b") if path is None else path.open("a+b")  # noqa: SIM115

    def last_lines(self) -> str:
        """The last lines, as one."""
        self.file.seek(max(0, self.file.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = self.file.read().decode(errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-LAST_LINES:]) or "it said nothing"

    def trim(self) -> None:
        """Cut a log that is too long to its end. A process that writes to it appends, and goes on at its new end."""
        if os.fstat(self.file.fileno()).st_size > MAX_LOG_BYTES:
            self.file.seek(-KEPT_LOG_BYTES, os.SEEK_END)
            end = self.file.read()
            self.file.truncate(0)
            self.file.write(end)
            self.file.flush()

    def close(self) -> None:
        self.file.close()


class ChildProcess:
    """One process. `exit_fd` is readable once it has ended (None where the system has no such descriptor: poll)."""

    def __init__(self, launch: Launch, log: IO[bytes] | None) -> None:
        """Start it. Without a log its standard error is ours."""
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", *launch.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if launch.answers else log,
            stderr=log,
            bufsize=0,
            pass_fds=launch.descriptors,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **launch.environment},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self.stdin, self.stdout, self.pid = self._process.stdin, self._process.stdout, self._process.pid
        self.exit_fd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        os.set_blocking(self.stdin.fileno(), False)
        self._unsent = memoryview(launch.message)
        self.send()

    def send(self) -> None:
        """Write to its standard input what its pipe did not take before. This never waits: a process that is still
        starting does not delay the next one."""
        while self._unsent and not self.stdin.closed:
            try:
                self._unsent = self._unsent[os.write(self.stdin.fileno(), self._unsent) :]
            except (BlockingIOError, BrokenPipeError):
                return

    def exit_code(self) -> int | None:
        """How it ended, as subprocess says it (-9: SIGKILL); None while it lives."""
        if self._process.returncode is None:
            # What it left running is ended before it is reaped: until then no other process can have its number.
            with suppress(ChildProcessError):  # another part of the program reaped it: its code is taken as 0
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
                self.kill()
            self._process.wait()
        return self._process.returncode

    def stop(self) -> None:
        """Ask it to end, by SIGTERM. Its standard input stays open: its end would be a second request, which ends a
        training at once, without a checkpoint."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End it, and everything that it started in its session."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended in time."""
        until = time.monotonic() + timeout_s
        while self.exit_code() is None:
            if time.monotonic() >= until:
                return False
            time.sleep(0.005)
        return True

    def close(self) -> None:
        """Kill it if it lives, and close all that leads to it."""
        if self.exit_code() is None:
            self.kill()
            self._process.wait()
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        if self.exit_fd is not None:
            os.close(self.exit_fd)
            self.exit_fd = None


def stop_all(processes: Iterable[ChildProcess], deadline_s: float) -> None:
    """Ask each to end; those that have not by the deadline are killed."""
    running = list(processes)
    for process in running:
        process.stop()
    until = time.monotonic() + deadline_s
    for process in running:
        process.wait(until - time.monotonic())
        process.close()


def exit_reason(code: int) -> str:
    """An exit code in words."""
    return f"code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


@dataclass(slots=True)
class RestartPolicy:
    """When a process that died is started again, and when it is given up: exponential back-off, a limit of restarts,
    and the detection of crash loops. One for each process; it knows no clock and no process."""

    restarts: int = -1  # that are allowed; -1: any number
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0
    young_s: float = 2.0  # a process that worked for less than this died young, and the next wait is longer
    loop_deaths: int = 5  # so many young deaths within loop_s are a crash loop; 0: it is never given up
    loop_s: float = 60.0
    failures: int = 0  # young deaths in a row
    deaths: int = 0
    young: deque[float] = field(default_factory=deque)  # when the last young deaths were

    def died(self, now_s: float, up_s: float | None, *, killed: bool = False) -> float | None:
        """Seconds to wait before the next start; None: give up. `up_s`: since when it worked, None where it never did.
        A process that others killed at work is no crash loop, however often they do."""
        self.deaths += 1
        is_young = up_s is None or now_s - up_s < self.young_s
        self.failures = self.failures + 1 if is_young else 1
        if up_s is None or (is_young and not killed):
            self.young.append(now_s)
        while len(self.young) > self.loop_deaths:
            self.young.popleft()
        is_loop = len(self.young) == self.loop_deaths > 0 and now_s - self.young[0] < self.loop_s
        if is_loop or 0 <= self.restarts < self.deaths:
            return None
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(self.failures - 1, 30))


@dataclass(slots=True, eq=False)
class SupervisedProcess:
    """One process through its restarts; its owner starts it when it is `due`, and looks often whether it `ended`."""

    name: str
    log: ProcessLog
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    generation: int = 0  # of the next start, counted from 0
    process: ChildProcess | None = None
    up_s: float | None = None  # since when it has worked; its owner says so
    next_start_s: float = 0.0
    gave_up: bool = False

    def due(self, now_s: float) -> bool:
        """Whether it is to be started."""
        return self.process is None and not self.gave_up and now_s >= self.next_start_s

    def start(self, launch: Launch) -> ChildProcess:
        self.log.trim()
        self.process = ChildProcess(launch, self.log.file)
        self.generation += 1
        return self.process

    def ended(self, now_s: float) -> int | None:
        """The exit code where it has ended since the last look; then `next_start_s` or `gave_up` say what follows."""
        if self.process is None or (code := self.process.exit_code()) is None:
            return None
        self.process.close()
        self.process = None
        wait_s = self.policy.died(now_s, self.up_s, killed=code == -signal.SIGKILL)
        self.up_s, self.gave_up, self.next_start_s = None, wait_s is None, now_s + (wait_s or 0.0)
        return code

    def close(self) -> None:
        """End it by force if it runs, and close its log."""
        if self.process is not None:
            self.process.close()
            self.process = None
        self.log.close()


class Supervisor:
    """Commands that are kept running. A context manager: leaving it stops them all, within `stop_s`."""

    def __init__(self, logs: Path, say: Callable[[str], None], policy: Callable[[], RestartPolicy], stop_s: float):
        self._logs, self._say, self._policy, self._stop_s = logs, say, policy, stop_s
        self._children: dict[str, tuple[SupervisedProcess, Callable[[int], Launch | None]]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop_all((one.process for one, _ in self._children.values() if one.process is not None), self._stop_s)
        for child, _launch in self._children.values():
            child.close()
        self._children.clear()

    def add(self, name: str, launch: Callable[[int], Launch | None]) -> None:
        """Keep a process running from the next tick on; nothing where there is one of that name. `launch` is asked for
        before every start, with the number of failures in a row; None: not now."""
        if name not in self._children:
            log = ProcessLog(self._logs / f"{name}.log")
            self._children[name] = (SupervisedProcess(name, log, self._policy()), launch)

    def alive(self, name: str) -> bool:
        """Whether it runs now."""
        process = self._children[name][0].process
        return process is not None and process.exit_code() is None

    def tick(self, now_s: float) -> None:
        """Notice what ended, and start what should run. Call it a few times a second."""
        for child, launch in self._children.values():
            if (code := child.ended(now_s)) == 0:
                child.policy.failures, child.next_start_s = 0, now_s
            elif code is not None:
                wait_s = child.next_start_s - now_s
                self._say(f"{child.name} ended with code {code}; again in {wait_s:.0f} s. See {child.log.path}")
            if child.due(now_s):
                if (how := launch(child.policy.failures)) is None:
                    child.next_start_s = now_s + child.policy.first_wait_s
                else:
                    child.start(how)
                    child.up_s = now_s
