"""A crew: n processes that play, kept alive, and gone when the learner is.

Each hangs on a pipe (its standard input) and on a bell; the end of either says that the other side has ended. Memory
reaches it as inherited descriptors. One that dies is started again, later each time; one that keeps dying young
ends the run with what it said last.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from sparring.errors import ConfigError, TrainingStopped
from sparring.hosts.restart_policy import LOOP_DEATHS, LOOP_S, RestartPolicy
from sparring.learn.actors.actor_process import ANSWER
from sparring.learn.actors.wakeup import Wakeup, wait_any

WORKER = "sparring.learn.actors.actor_process"
STOP_S = 2.0  # then those that are left are killed
ANSWER_S = 10.0
MAX_LOG_BYTES = 1 << 20
SAID_LINES = 8
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Who is to be started: its number, how many were it before, and the descriptor of its bell."""

    actor: int
    generation: int
    bell: int


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How it is started: what it is told (one line) and which descriptors it inherits beside its bell."""

    told: bytes
    descriptors: tuple[int, ...]
    module: str = WORKER


@dataclass(slots=True)
class _Member:
    actor: int
    generation: int
    log: IO[bytes]
    process: subprocess.Popen[bytes] | None = None
    bell: Wakeup | None = None
    next_s: float = 0.0  # not started before
    revival: RestartPolicy = field(default_factory=RestartPolicy)


class ProcessPool:
    """`launch` is asked at every start, and gives a dead one's successor a memory that it has not touched."""

    def __init__(self, size: int, launch: Callable[[StartRequest], ProcessSpec], generation: int = 0) -> None:
        if os.name != "posix":
            raise ConfigError(
                "processes inherit no memory here", where="--topology", do="Use `--topology single` on this system"
            )
        self._launch = launch
        self._members = [_Member(actor, generation, _log()) for actor in range(size)]
        self.restarts = 0
        try:
            told = [self._start(member) for member in self._members]
        except BaseException:
            self.close()
            raise
        for member, line in zip(self._members, told, strict=True):
            _tell(member, line)  # only now: one that is still starting must not keep the next one from it

    def __len__(self) -> int:
        return len(self._members)

    @property
    def generation(self) -> int:
        """More than that of any that played so far: where whoever goes on with this run begins."""
        return 1 + max(member.generation for member in self._members)

    def resize(self, size: int) -> None:
        """So many from now on: the last are ended, new ones are started."""
        leaving, generation = self._members[size:], self.generation
        del self._members[size:]
        _end(leaving)
        new = [_Member(actor, generation, _log()) for actor in range(len(self._members), size)]
        self._members += new  # before they are started: whoever is asked meanwhile is told how many there will be
        for member in new:
            _tell(member, self._start(member))

    def pid(self, actor: int) -> int | None:
        """Of its process; None between two lives."""
        process = self._members[actor].process
        return None if process is None else process.pid

    def replace(self, actor: int) -> None:
        """End an actor by force, also a frozen one; another takes its place."""
        if (process := self._members[actor].process) is not None:
            process.kill()

    def ring(self, actor: int) -> None:
        """Wake one actor: there is room, or news."""
        if (bell := self._members[actor].bell) is not None:
            bell.ring()

    def ring_all(self) -> None:
        """Wake all."""
        for member in self._members:
            self.ring(member.actor)

    def wait(self, timeout_s: float) -> None:
        """Sleep until an actor rings or dies, at most so long. The dead are started again when their time has come."""
        bells = [member.bell for member in self._members if member.bell is not None]
        now = time.monotonic()
        waking = [member.next_s - now for member in self._members if member.process is None]
        timeout_s = max(0.0, min([timeout_s, *waking]))
        if bells:
            wait_any(bells, timeout_s)
        else:
            time.sleep(timeout_s)
        self.tend()

    def wait_until(self, there: Callable[[], bool], timeout_s: float) -> bool:
        """Sleep until something is there; False where it is not in time."""
        until = time.monotonic() + timeout_s
        self.tend()
        while not there():
            left = until - time.monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True

    def tend(self) -> None:
        """Notice who died and start whose time has come; TrainingStopped where one keeps dying young."""
        now = time.monotonic()
        for member in self._members:
            if member.bell is not None and member.bell.first_heard_s is None:
                member.bell.hear()  # a learner that never waits hears nobody else
            if member.process is not None and member.process.poll() is not None:
                self._bury(member, now)
            if member.process is None and now >= member.next_s:
                member.generation += 1
                self.restarts += 1
                _tell(member, self._start(member))

    def ask(self, version: int) -> list[bytes]:
        """Each actor as it was before it played that version; empty for one that does not answer."""
        asked = [member for member in self._members if _tell(member, b"%d\n" % version)]
        until = time.monotonic() + ANSWER_S
        answers = {member.actor: _answer(member, version, until) for member in asked}
        return [answers.get(member.actor, b"") for member in self._members]

    def close(self) -> None:
        """Stop all."""
        _end(self._members)
        self._members = []

    def _start(self, member: _Member) -> bytes:
        """A process of that member; what it must be told."""
        bell, theirs = Wakeup.pair()
        with theirs:
            launch = self._launch(StartRequest(member.actor, member.generation, theirs.fileno()))
            member.process = _open(launch, theirs, member.log)
        member.bell = bell
        return launch.told + b"\n"

    def _bury(self, member: _Member, now: float) -> None:
        assert member.process is not None
        assert member.bell is not None
        code, played_s = member.process.returncode, member.bell.first_heard_s
        _let_go(member)
        wait_s = member.revival.died(now, played_s, killed=code == -signal.SIGKILL)
        if wait_s is None:
            raise TrainingStopped(
                f"it ended {LOOP_DEATHS} times within {LOOP_S:.0f} s, last with code {code}: {_said(member.log)}",
                where=f"actor {member.actor}",
                do="Mend the game, or look at it with --topology single; --resume goes on from the last checkpoint",
            )
        member.next_s = now + wait_s
        if member.log.tell() > MAX_LOG_BYTES:
            member.log.truncate(0)


def _open(launch: ProcessSpec, bell: socket.socket, log: IO[bytes]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", launch.module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        bufsize=0,
        pass_fds=(*launch.descriptors, bell.fileno()),
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for the learner, which then stops its crew in good order
    )


def _tell(member: _Member, line: bytes) -> bool:
    """Whether it could be told; the dead are noticed elsewhere."""
    if member.process is None or member.process.stdin is None:
        return False
    left = memoryview(line)
    try:
        while left:
            left = left[member.process.stdin.write(left) :]
    except BrokenPipeError:
        return False
    return True


def _answer(member: _Member, version: int, until: float) -> bytes:
    """What it says of that version; answers to earlier questions, which came too late, are passed over."""
    while (head := _read(member, ANSWER.size, until)) is not None:
        said, length = ANSWER.unpack(head)
        state = _read(member, length, until)
        if state is not None and said == version:
            return state
    return b""


def _read(member: _Member, size: int, until: float) -> bytes | None:
    assert member.process is not None
    assert member.process.stdout is not None
    descriptor, parts = member.process.stdout.fileno(), b""
    while len(parts) < size:
        readable, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        part = os.read(descriptor, size - len(parts)) if readable else b""
        if not part:
            return None
        parts += part
    return parts


def _end(members: list[_Member]) -> None:
    """Stop them: by the end of their input, and by force whoever has not heard it in time."""
    running = [member.process for member in members if member.process is not None]
    for process in running:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
    until = time.monotonic() + STOP_S
    for process in running:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    for member in members:
        _let_go(member)
        member.log.close()


def _log() -> IO[bytes]:
    return tempfile.TemporaryFile(mode="a+b")


def _let_go(member: _Member) -> None:
    """Take in a process that ended, or was killed, with all that led to it."""
    if member.process is not None:
        member.process.wait()
        for pipe in (member.process.stdin, member.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        member.process = None
    if member.bell is not None:
        member.bell.close()
        member.bell = None


def _said(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - 4000))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-SAID_LINES:]) or "it said nothing"
