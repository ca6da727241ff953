"""Who offers a service, and where. `local://` here; `consul://` in consul.py.

local://FOLDER is a folder with one small file for each instance. Its owner holds a lock on that file for as long as
it lives, and the kernel takes it away with the process: whoever is killed is gone at that moment, without a heartbeat.
"""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from sparring.errors import ConfigError


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a service."""

    service: str
    id: str
    address: str  # "ipc:///…", "tcp://host:port"
    pid: int = 0
    idempotent: tuple[str, ...] = ()  # verbs that may be asked again elsewhere
    key: str = ""  # its public CURVE key, between machines


class Announced(Protocol):
    """An instance that others can find until this is closed."""

    def close(self) -> None: ...


class Discovery(Protocol):
    """Threads may call it."""

    def announce(self, instance: Instance) -> Announced:
        """Let others find it, until what is returned is closed or this process ends."""
        ...

    def instances(self, service: str) -> tuple[Instance, ...]:
        """Those that live, as far as is known. Cheap: it is asked before each call."""
        ...

    def alive(self, instance: Instance) -> bool:
        """Whether it still is there, as far as is known."""
        ...

    def address(self, service: str, id: str) -> str:
        """Where an instance of this machine should listen."""
        ...

    def close(self) -> None: ...


class Local:
    """This machine's processes."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._known: dict[str, tuple[int, tuple[Instance, ...]]] = {}
        self._lock = threading.Lock()

    def address(self, service: str, id: str) -> str:
        path = f"{self.folder}/{service}.{id}.sock"
        if len(path.encode()) > 100:  # a Unix socket's path is at most 107 bytes
            raise ConfigError(f"{path} is too long for a socket", where="discovery", do="Choose a shorter folder")
        return f"ipc://{path}"

    def announce(self, instance: Instance) -> Announced:
        path = self.folder / f"{instance.service}.{instance.id}.json"
        fresh = path.with_suffix(".new")
        handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, msgspec.json.encode(instance))
        fresh.rename(path)  # nobody reads it before it is whole and locked
        return _Held(path, handle)

    def instances(self, service: str) -> tuple[Instance, ...]:
        changed = self.folder.stat().st_mtime_ns
        with self._lock:
            known = self._known.get(service)
            if known is None or known[0] != changed:
                known = self._known[service] = (changed, tuple(self._read(service)))
        return known[1]

    def alive(self, instance: Instance) -> bool:
        path = self.folder / f"{instance.service}.{instance.id}.json"
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        for left in (path, path.with_suffix(".sock"), path.with_suffix(".fd")):
            with suppress(FileNotFoundError):
                left.unlink()
        return False

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, service: str) -> Iterator[Instance]:
        for path in sorted(self.folder.glob(f"{service}.*.json")):
            with suppress(FileNotFoundError, msgspec.DecodeError):
                found = msgspec.json.decode(path.read_bytes(), type=Instance)
                if found.service == service and self.alive(found):
                    yield found


@dataclass(slots=True)
class _Held:
    path: Path
    handle: int

    def close(self) -> None:
        with suppress(FileNotFoundError):
            self.path.unlink()
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def default_folder() -> Path:
    """Where this user's services meet."""
    place = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(place) / f"sparring-{os.getuid()}"
