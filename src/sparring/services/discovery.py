"""Which instances offer a service, at which address, and which of them a call goes to.

local://                      this user's processes on this machine (Local, below)
local:///folder               those that share that folder
consul://127.0.0.1:8500       many machines, each with its Consul agent (consul_discovery.py; docs/services.md)
ray://auto/NAMESPACE          Ray's named actors (hosts/ray/discovery.py)
"""

import difflib
import fcntl
import os
import pkgutil
import random
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
import zmq

from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.services.client import Connection
    from sparring.services.shared_memory import Mapped

BACKENDS = {
    "local": "sparring.services.discovery:open_local",
    "consul": "sparring.services.consul_discovery:open_consul",
    "ray": "sparring.hosts.ray.discovery:open_ray",
}
VARIABLE = "SPARRING_DISCOVERY"
FRESH_S = 0.05  # what discovery found is used for so long without another look
STICKY_KEYS = 100_000  # the longest unused are forgotten
MAX_PATH_BYTES = 100  # a Unix socket's is at most 107, and a file beside it may have a longer ending
LEFT = (".sock", ".fd", ".topic")  # files beside an address


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a service."""

    service: str
    id: str
    address: str  # "ipc:///…", "tcp://host:port"
    pid: int = 0
    idempotent: tuple[str, ...] = ()  # verbs that may be called a second time, on another instance
    key: str = ""  # its public CURVE key, between machines
    host: str = ""  # the machine's name, of one that is not this
    since_s: float = 0.0  # when it was announced, in seconds since the epoch


_read_instance = msgspec.json.Decoder(Instance).decode


class Listening(NamedTuple):
    """Where an instance listens. Close it before its context, after its socket."""

    address: str  # for callers of this machine
    close: Callable[[], object]


class Discovery(Protocol):
    """Threads may call it."""

    def listen(self, socket: "zmq.Socket[bytes]", service: str, id: str) -> Listening:
        """Bind an instance's socket to the address that its callers will use."""

    def connect(self, socket: "zmq.Socket[Any]", instance: Instance) -> None:
        """Connect a caller's socket to an instance."""

    def announce(self, instance: Instance) -> ExitStack:
        """Let callers find it, until what is returned is closed or this process ends."""

    def instances(self, service: str) -> tuple[Instance, ...]:
        """Those that live, as far as is known."""

    def alive(self, instance: Instance) -> bool:
        """Whether it still is there, as far as is known."""

    def services(self) -> tuple[str, ...]:
        """The names of all services that have instances."""

    def close(self) -> None: ...


class Target:
    """An instance, and what is known of it here."""

    __slots__ = ("calls", "gone", "idle", "instance", "peer")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        # Under way from here: from the choice on, so that calls that begin together are spread. A list that threads
        # lengthen and shorten by one needs no lock, and its length is the number.
        self.calls: list[None] = []
        self.idle: list[Connection] = []
        self.peer: Mapped | None = None  # its arena
        self.gone = False

    def close(self) -> None:
        """It is gone, or we are: it holds nothing of ours any more."""
        self.gone = True
        while self.idle:
            self.idle.pop().close()
        if self.peer is not None:
            self.peer.close()
            self.peer = None


class Router:
    """Chooses an instance for each call. Threads may share one. A target that is found no more is closed."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._round_robin = random.randrange(1 << 16)
        self._found: dict[str, tuple[float, tuple[Target, ...]]] = {}  # service → until when it is fresh, who
        self._targets: dict[tuple[str, str, str], Target] = {}  # by service, id and address
        self._sticky: OrderedDict[tuple[str, str], str] = OrderedDict()  # (service, key) → instance
        self._lock = threading.Lock()

    def choose(self, service: str, key: str | None, refused: Sequence[str], now: float) -> Target | None:
        """Where a call goes now; None where no instance is there, apart from the `refused`. It counts until `done`."""
        found = self._found.get(service)
        there = found[1] if found is not None and now < found[0] else self._look(service, now)
        if refused:
            there = tuple(one for one in there if one.instance.id not in refused)
        if not there:
            return None
        if key is None and len(there) == 1:
            there[0].calls.append(None)
            return there[0]
        with self._lock:
            chosen = self._choose(service, key, there)
            chosen.calls.append(None)
        return chosen

    def done(self, target: Target) -> None:
        """A call that was sent there is over, however it ended."""
        target.calls.pop()

    def look_again(self, service: str) -> None:
        """Something there is not as it was found."""
        self._found.pop(service, None)

    def close(self) -> None:
        with self._lock:
            targets, self._targets, self._found = self._targets, {}, {}
        for target in targets.values():
            target.close()

    def _choose(self, service: str, key: str | None, there: Sequence[Target]) -> Target:
        sticky = None if key is None else self._sticky.get((service, key))
        chosen = next((one for one in there if one.instance.id == sticky), None)
        if chosen is None:
            least = min(len(one.calls) for one in there)
            equals = [one for one in there if len(one.calls) == least] or there
            self._round_robin += 1
            chosen = equals[self._round_robin % len(equals)]
        if key is not None:
            self._sticky[service, key] = chosen.instance.id
            self._sticky.move_to_end((service, key))
            if len(self._sticky) > STICKY_KEYS:
                self._sticky.popitem(last=False)
        return chosen

    def _look(self, service: str, now: float) -> tuple[Target, ...]:
        live = self._discovery.instances(service)
        with self._lock:
            places = {(service, one.id, one.address): one for one in live}
            there = tuple(self._targets.setdefault(place, Target(one)) for place, one in places.items())
            left = [place for place in self._targets if place[0] == service and place not in places]
            gone = [self._targets.pop(place) for place in left]
            if there:
                self._found[service] = (now + FRESH_S, there)
            else:
                self._found.pop(service, None)
        for target in gone:
            target.close()
        return there


class Local:
    """This machine's processes that meet in one folder, with one small file for each instance.

    Its owner holds a lock on that file for as long as it lives, and the kernel releases it with the process: one that
    is killed is gone at that moment, without a heartbeat. A file's name is its service and id; sockets have names that
    are never used again, so that no process removes a successor's.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = self.folder.stat().st_uid
        if owner not in (os.getuid(), 0):  # in a shared /tmp anybody may have made it first
            raise ConfigError(
                f"{self.folder} belongs to user {owner}", where="services.discovery", do="Choose another folder"
            )

    @property
    def local(self) -> "Local":
        return self

    def listen(self, socket: "zmq.Socket[bytes]", service: str, id: str) -> Listening:
        path = self.folder / f"{service[:12]}.{os.urandom(4).hex()}.sock"  # short: see MAX_PATH_BYTES
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ConfigError(f"{path} is too long for a socket", where="discovery", do="Choose a shorter folder")
        socket.bind(f"ipc://{path}")
        return Listening(f"ipc://{path}", partial(path.unlink, missing_ok=True))

    def connect(self, socket: "zmq.Socket[Any]", instance: Instance) -> None:
        socket.connect(instance.address)

    def announce(self, instance: Instance) -> ExitStack:
        path = self._file(instance)
        fresh = path.with_suffix(f".{os.urandom(3).hex()}.new")
        handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        instance = msgspec.structs.replace(instance, since_s=instance.since_s or time.time())
        os.write(handle, msgspec.json.encode(instance))
        with self._alone():
            fresh.rename(path)  # it is not read before it is whole and locked
        announced = ExitStack()
        announced.callback(os.close, handle)
        announced.callback(_remove, path, handle)
        return announced

    def instances(self, service: str) -> tuple[Instance, ...]:
        return tuple(self._read(service))

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
        with self._alone():
            _remove(path, handle)
        for ending in LEFT if address.startswith("ipc://") else ():
            Path(address.removeprefix("ipc://")).with_suffix(ending).unlink(missing_ok=True)

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
                found = _read_instance(path.read_bytes())
                if found.service == service and self.alive(found):
                    yield found


def _remove(path: Path, handle: int) -> None:
    """Remove an instance's file, unless it is a successor's."""
    with suppress(FileNotFoundError):
        if os.fstat(handle).st_ino == path.stat().st_ino:
            path.unlink()


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


def open_discovery(url: str | None = None) -> Discovery:
    """The discovery behind a URL; without one, that of SPARRING_DISCOVERY, else `local://`."""
    url = url or os.environ.get(VARIABLE) or "local://"
    scheme, sign, _ = url.partition("://")
    if not sign or scheme not in BACKENDS:
        near = difflib.get_close_matches(urlsplit(url).scheme or scheme, BACKENDS, n=1)
        do = f"Did you mean {near[0]}://" if near else f"Use one of {', '.join(f'{name}://' for name in BACKENDS)}"
        raise ConfigError(f"{url!r} is no discovery", where="services.discovery", do=do)
    opened: Discovery = pkgutil.resolve_name(BACKENDS[scheme])(url)
    return opened
