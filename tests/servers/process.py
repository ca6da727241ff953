"""A server's process that others can find, kill and start again: what it is and its pid are files in its folder.

No object of the process that started it is needed, so that the workers of a test run share one, and a script that
started it yesterday stops it today. It is the leader of a session of its own; whatever it starts belongs to it.
"""

import http.client
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

POLL_S = 0.1
RUN = "SPARRING_TEST_RUN"  # the folder of the test run that this process belongs to, if to one (sharing.py)
CQL_OPTIONS = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))  # protocol v4, "what do you speak?"
CQL_SUPPORTED = 6
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not know our loopback


class NotThere(Exception):
    """A server that is not installed; says what installs it."""


class NotReady(Exception):
    """A server that was started and does not answer; ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Process:
    """One server: how it is started, and where one sees that it answers."""

    name: str
    folder: str  # of its log and its pid
    words: tuple[str, ...]
    ready: str  # http://…, cql://HOST:PORT or redis://HOST:PORT
    says: str = ""  # which the page at http://… must hold
    env: Mapping[str, str] = field(default_factory=dict)  # beside the environment of who starts it
    patience_s: float = 280.0  # for the first answer: two cores that do much else are slow; below a test's limit

    @property
    def log(self) -> Path:
        return Path(self.folder) / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """Of the process that runs, if one does."""
        return alive(self.pidfile)

    def start(self) -> Self:
        """Started, and answering."""
        return self.launch().wait()

    def launch(self) -> Self:
        """Started; `wait` returns when it answers."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # No Popen: it would belong to whoever holds the object, and complain when that ends first.
        pid = os.posix_spawnp(self.words[0], self.words, os.environ | self.env, file_actions=files, setsid=True)
        born = f"{pid} {psutil.Process(pid).create_time()}"
        self.pidfile.write_text(born)
        if listed := _listed(pid):
            listed.write_text(born)
        return self

    def wait(self) -> Self:
        """Until it answers."""
        until = time.monotonic() + self.patience_s
        while not answers(self.ready, self.says):
            if self.pid is None:
                raise NotReady(f"{self.name} ended: {self._last_words()}")
            if time.monotonic() > until:
                raise NotReady(f"{self.name} does not answer at {self.ready}: {self._last_words()}")
            time.sleep(POLL_S)
        return self

    def kill(self) -> None:
        """kill -9, and all that it started."""
        end(self.pidfile, gently_s=0.0)

    def stop(self, gently_s: float = 20.0) -> None:
        """SIGTERM, and after `gently_s` kill -9."""
        end(self.pidfile, gently_s)

    def restart(self) -> Self:
        """As it was, on the same ports and data, after a kill or without."""
        self.kill()
        return self.start()

    @property
    def pidfile(self) -> Path:
        return Path(self.folder) / f"{self.name}.pid"

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


def alive(pidfile: Path) -> int | None:
    """The pid in the file, if that very process still runs."""
    with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
        pid, born = pidfile.read_text().split()
        process = psutil.Process(int(pid))
        if abs(process.create_time() - float(born)) < 1 and process.status() != psutil.STATUS_ZOMBIE:
            return process.pid
    return None


def _listed(pid: int) -> Path | None:
    """Where the test run keeps it too, so that it is ended whatever happens to who started it."""
    started = Path(os.environ.get(RUN, "/nonexistent")) / "started"
    return started / f"{pid}.pid" if started.exists() else None


def end(pidfile: Path, gently_s: float) -> None:
    """The process of this file and all of its session are gone, and so is the file."""
    pid = alive(pidfile)
    if pid is not None:
        family = [psutil.Process(pid), *_session(pid)]
        if gently_s:
            with suppress(psutil.NoSuchProcess):
                family[0].terminate()
            _, family = psutil.wait_procs(family, timeout=gently_s)
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        _, left = psutil.wait_procs(family, timeout=10)
        stuck = [member.pid for member in left if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]
        if stuck:
            raise RuntimeError(f"{pidfile}: processes {stuck} do not end")
    with suppress(FileNotFoundError, ValueError, ChildProcessError):
        was = int(pidfile.read_text().split()[0])
        if listed := _listed(was):
            listed.unlink(missing_ok=True)
        os.waitpid(was, os.WNOHANG)  # one that ended by itself is still to be reaped
    pidfile.unlink(missing_ok=True)


def _session(leader: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if process.pid != leader and os.getsid(process.pid) == leader:
                yield process


def answers(where: str, says: str = "") -> bool:
    """Whether a server answers at http://… (with any status), cql://HOST:PORT or redis://HOST:PORT."""
    scheme, _, rest = where.partition("://")
    host, _, port = rest.partition(":")
    try:
        if scheme == "redis":
            with socket.create_connection((host, int(port)), timeout=2) as line:
                line.sendall(b"PING\r\n")
                return line.recv(7) in (b"+PONG\r\n", b"-NOAUTH")
        if scheme == "cql":
            with socket.create_connection((host, int(port)), timeout=2) as line:
                line.sendall(CQL_OPTIONS)
                head = line.recv(9)
                return len(head) == 9 and head[4] == CQL_SUPPORTED
        try:
            with DIRECT.open(where, timeout=2) as page:
                return says in page.read().decode(errors="replace")
        except urllib.error.HTTPError as refusal:
            with refusal:
                return not says
    except (OSError, http.client.HTTPException):
        return False


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, on every address of the loopback."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
