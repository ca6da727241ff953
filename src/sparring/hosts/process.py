"""One instance's process: started with its log, told what it is, and ended with all that it started."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from sparring.hosts.worker import LENGTH, WorkerSpec

WORKER = "sparring.hosts.worker"
MAX_LOG_BYTES, KEPT_LOG_BYTES = 4 << 20, 256 << 10  # one that grew too long is cut to its end
SAID_LINES, SAID_BYTES = 8, 4000
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


class Process:
    """A life of an instance. `ready` is readable once it can be called, `ended` once it is over (None: look)."""

    def __init__(self, told: WorkerSpec, log: Path) -> None:
        """Start it; `told.ready` is filled in here."""
        self._log = log
        ready, theirs = os.pipe()
        try:
            with log.open("ab") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", WORKER],
                    stdin=subprocess.PIPE,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    pass_fds=(theirs,),
                    env={**os.environ, **_environment(told)},
                    start_new_session=True,  # Ctrl-C is for the host, which then stops what it started in good order
                )
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(theirs)
        self.ready = ready
        self.pid = self._process.pid
        self.ended = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        message = msgspec.msgpack.encode(msgspec.structs.replace(told, ready=theirs))
        self._left = LENGTH.pack(len(message)) + message
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.tell()

    def tell(self) -> bool:
        """Write what it has not been told yet, as far as its pipe takes it now; whether it was told all."""
        assert self._process.stdin is not None
        with suppress(BlockingIOError, BrokenPipeError):
            while self._left:
                self._left = self._left[os.write(self._process.stdin.fileno(), self._left) :]
        return not self._left

    def heard_ready(self) -> bytes:
        """What it said on becoming ready; empty where it ended instead."""
        said = os.read(self.ready, 65536)
        os.close(self.ready)
        self.ready = -1
        return said

    def over(self) -> str | None:
        """How it ended; None while it lives."""
        code = self._process.returncode
        if code is None:
            # Not taken in before what it left running is ended: until then nobody else can have its number.
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self.kill()
            code = self._process.wait()
        return f"code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def stop(self) -> None:
        """Ask it to end."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it, and whatever it started in its session."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """End it if it lives, and close all that led to it."""
        if self.over() is None:
            self.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        for descriptor in (self.ready, self.ended):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self.ready, self.ended = -1, None

    def said(self) -> str:
        """Its last lines."""
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - SAID_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-SAID_LINES:]) or "it said nothing"


def cut(log: Path) -> None:
    """Keep a log within its bounds. Whoever writes to it appends, and goes on at its new end."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > MAX_LOG_BYTES:
            with log.open("r+b") as file:
                file.seek(-KEPT_LOG_BYTES, os.SEEK_END)
                end = file.read()
                file.truncate(0)
            with log.open("ab") as file:
                file.write(end)


def _environment(told: WorkerSpec) -> dict[str, str]:
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "SPARRING_DISCOVERY": told.discovery}
    return {**{name: one for name, one in ONE_THREAD.items() if name not in os.environ}, **own}
