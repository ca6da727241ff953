"""`local://FOLDER`: a folder with one small file for each instance.

Its owner holds a lock on that file for as long as it lives, and the kernel releases it with the process: one that is
killed is gone at that moment, without a heartbeat. A file's name is its service and id; sockets have names that are
never used again, so that no process removes a successor's.
"""

import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import zmq

from sparring.errors import ConfigError
from sparring.services.discovery import Announcement, Instance, ServerSocket

MAX_PATH_BYTES = 100  # a Unix socket's is at most 107, and a file beside it may have a longer ending
SETTLED_NS = 50_000_000  # a folder that changed later than this ago may change again within the same tick of its clock
LEFT = (".sock", ".fd", ".topic")  # files beside an address


class Local:
    """This machine's processes that meet in one folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = self.folder.stat().st_uid
        if owner not in (os.getuid(), 0):  # in a shared /tmp anybody may have made it first
            raise ConfigError(
                f"{self.folder} belongs to user {owner}", where="services.discovery", do="Choose another folder"
            )
        self._known: dict[str, tuple[int, tuple[Instance, ...]]] = {}
        self._lock = threading.Lock()

    @property
    def local(self) -> "Local":
        return self

    def listen(self, socket: "zmq.Socket[bytes]", service: str, id: str) -> ServerSocket:
        path = self.folder / f"{service[:12]}.{os.urandom(4).hex()}.sock"  # short: see MAX_PATH_BYTES
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ConfigError(f"{path} is too long for a socket", where="discovery", do="Choose a shorter folder")
        socket.bind(f"ipc://{path}")
        return _Socket(path)

    def connect(self, socket: "zmq.Socket[Any]", instance: Instance) -> None:
        socket.connect(instance.address)

    def announce(self, instance: Instance) -> Announcement:
        path = self._file(instance)
        fresh = path.with_suffix(f".{os.urandom(3).hex()}.new")
        handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        instance = msgspec.structs.replace(instance, since_s=instance.since_s or time.time())
        os.write(handle, msgspec.json.encode(instance))
        with self._alone():
            fresh.rename(path)  # it is not read before it is whole and locked
        return _Held(path, handle)

    def instances(self, service: str) -> tuple[Instance, ...]:
        changed = self.folder.stat().st_mtime_ns
        with self._lock:
            known = self._known.get(service)
        if known is None or known[0] != changed:
            settled = time.time_ns() - changed > SETTLED_NS
            known = (changed if settled else 0, tuple(self._read(service)))
            with self._lock:
                self._known[service] = known
        return known[1]

    def alive(self, instance: Instance) -> bool:
        path = self._file(instance)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._bury(path, handle, instance.address)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def services(self) -> tuple[str, ...]:
        return tuple(sorted({path.name.rsplit(".", 2)[0] for path in self.folder.glob("*.json")}))

    def close(self) -> None:
        """Nothing is held."""

    def _file(self, instance: Instance) -> Path:
        return self.folder / f"{instance.service}.{instance.id}.json"

    def _bury(self, path: Path, handle: int, address: str) -> None:
        """Remove what a dead one left, unless a successor of the same id has come meanwhile."""
        with self._alone(), suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.stat().st_ino:
                path.unlink()
        socket = Path(address.removeprefix("ipc://"))
        for ending in LEFT if address.startswith("ipc://") else ():
            with suppress(FileNotFoundError):
                socket.with_suffix(ending).unlink()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time exchanges or removes files."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _read(self, service: str) -> Iterator[Instance]:
        for path in sorted(self.folder.glob(f"{service}.*.json")):
            with suppress(FileNotFoundError, msgspec.DecodeError):
                found = msgspec.json.decode(path.read_bytes(), type=Instance)
                if found.service == service and self.alive(found):
                    yield found


@dataclass(frozen=True, slots=True)
class _Socket:
    path: Path

    @property
    def address(self) -> str:
        return f"ipc://{self.path}"

    def close(self) -> None:
        with suppress(FileNotFoundError):
            self.path.unlink()


@dataclass(slots=True)
class _Held:
    path: Path
    handle: int

    def close(self) -> None:
        if self.handle < 0:
            return
        with suppress(FileNotFoundError):
            if os.fstat(self.handle).st_ino == self.path.stat().st_ino:
                self.path.unlink()
        os.close(self.handle)
        self.handle = -1


def default_folder() -> Path:
    """Where this user's services meet."""
    place = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(place) / f"sparring-{os.getuid()}"


def open_local(url: str) -> Local:
    """`local://` or `local:///folder`."""
    parts = urlsplit(url)
    if parts.netloc or parts.query:
        raise ConfigError(
            f"{url!r} names more than a folder", where="services.discovery", do="Write local:// or local:///folder"
        )
    return Local(Path(unquote(parts.path)) if parts.path.strip("/") else None)
