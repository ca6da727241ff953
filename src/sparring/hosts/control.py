"""The service `host`: `spar services` sees by it what a host runs, and scales it.

On its machine it is found in the host's private folder; with `seen`, a discovery's URL (consul://…), also there.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparring.errors import Refused
from sparring.services.discovery import Discovery, Local, open_discovery, open_local
from sparring.services.register import register
from sparring.services.server import Server

NAME = "host"
_PREFIX, _OWNER = "h-", "owner"


class _ControlService:
    """Its verbs."""

    def __init__(self, runs: Callable[[], Any], scale: Callable[[str, int], Sized]) -> None:
        self._runs, self._scale = runs, scale

    @register(idempotent=True)
    def list(self) -> Any:
        """[{name, count, generations, instances}, …]"""
        return self._runs()

    @register(idempotent=True)
    def scale(self, name: str, count: int) -> int:
        """So many instances from now on; how many there are."""
        if count < 0:
            raise Refused(f"{count} instances", where=f"service {name}", do="Count from 0")
        return len(self._scale(name, count))


class HostFolder:
    """The folder of one host's sockets, announcements and logs, removed with the host; `spar services` finds the host
    in it, once it is served. Its owner holds a lock on it: a folder that a killed host left behind is removed by the
    next host."""

    def __init__(self, seen: str) -> None:
        around = open_local(seen if seen.startswith("local:") else "local://").folder
        _sweep(around)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=around))
        self._handle = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        self._seen = seen
        self._served: list[Server | Discovery] = []

    def serve(self, runs: Callable[[], Any], scale: Callable[[str, int], Sized]) -> None:
        """Let `spar services` find the host, and call these of it, until this is closed."""
        control, id = _ControlService(runs, scale), os.urandom(4).hex()  # the same in both discoveries: it is one host
        discoveries: list[Discovery] = [Local(self.path)]
        if urlsplit(self._seen).scheme not in ("", "local", "ray"):  # on Ray, too, a host is found on its machine
            discoveries.append(open_discovery(self._seen))
        for discovery in discoveries:
            self._served += (Server(control, discovery, name=NAME, id=id).start(), discovery)

    def close(self) -> None:
        for one in self._served:
            one.close()
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def _sweep(around: Path) -> None:
    for path in around.glob(f"{_PREFIX}*"):
        try:
            handle = os.open(path / _OWNER, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # being made, or being removed
            continue
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(handle)
