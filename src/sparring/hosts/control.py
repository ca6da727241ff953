"""The service `host`: `spar services` sees by it what a host runs, and scales it.

On its machine it is found in the host's private folder; with `seen`, a discovery's URL (consul://…), also there.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from sparring.errors import Refused
from sparring.services.discovery import Discovery, open_discovery
from sparring.services.local_discovery import Local, default_folder
from sparring.services.register import register
from sparring.services.server import Server

NAME = "host"
_PREFIX, _OWNER = "h-", "owner"


class ScalableHost(Protocol):
    """What the service asks of a host."""

    def runs(self) -> list[dict[str, Any]]:
        """Each service: its name, how many instances it has, and of each how often it was started again."""
        ...

    def scale(self, name: str, count: int) -> Any: ...


class _ControlService:
    """Its verbs."""

    def __init__(self, host: ScalableHost) -> None:
        self._host = host

    @register(idempotent=True)
    def list(self) -> "list[dict[str, Any]]":
        """[{name, count, generations}, …]"""
        return self._host.runs()

    @register(idempotent=True)
    def scale(self, name: str, count: int) -> int:
        """So many instances from now on; how many there are."""
        if count < 0:
            raise Refused(f"{count} instances", where=f"service {name}", do="Count from 0")
        return len(self._host.scale(name, count))


class HostControl:
    """Lets `spar services` find a host until this is closed."""

    def __init__(self, host: ScalableHost, folder: Path, seen: str = "") -> None:
        control, id = _ControlService(host), os.urandom(4).hex()  # the same in both discoveries: it is one host
        self._remote: Discovery | None = None if is_local(seen) else open_discovery(seen)
        self._servers = [
            Server(control, one, name=NAME, id=id) for one in (Local(folder), self._remote) if one is not None
        ]
        for server in self._servers:
            server.start()

    def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._remote is not None:
            self._remote.close()


class PrivateFolder:
    """The folder of one host's sockets, announcements and logs, removed with the host. Its owner holds a lock on it: a
    folder that a killed host left behind is removed by the next host."""

    def __init__(self, around: Path) -> None:
        around.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(around)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=around))
        self._handle = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def close(self) -> None:
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


def is_local(seen: str) -> bool:
    """Whether hosts that are seen there are those of this machine; on Ray, too, a host is found on its machine."""
    return urlsplit(seen).scheme in ("", "local", "ray")


def private_folder(seen: str) -> PrivateFolder:
    """A host's own folder, where `spar services` with that discovery looks for hosts on this machine."""
    path = urlsplit(seen).path if seen.startswith("local:") else ""
    return PrivateFolder(Local(Path(path)).folder if path.strip("/") else default_folder())
