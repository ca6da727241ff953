"""A host runs services: it starts as many instances as asked, keeps them alive, and hands out ways to call them.

`local://` is this machine's processes (local.py), `ray://auto` and `ray://host:port` a Ray cluster (ray/). A service
is a class with @register methods (services/register.py) that can be imported by its name; what its instances are given
is plain data. The same topology runs on every host, because it knows nothing but what stands here.
"""

import inspect
import logging
import pkgutil
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from sparring.closable import Closable
from sparring.errors import ConfigError, Missing, Refused
from sparring.services.register import verbs_of

log = logging.getLogger(__name__)

HOSTS = {"local": "sparring.hosts.local:LocalHost", "ray": "sparring.hosts.ray.cluster:open_ray"}  # by URL
MAX_COUNT = 1000  # instances of one service
MAX_EVENTS = 1000  # kept until a caller takes them
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
# The constructor's arguments: the same for all, or one mapping for each, or asked for with an instance's number and how
# many there will be.
Given = Mapping[str, Any] | Sequence[Mapping[str, Any]] | Callable[[int, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one instance needs. Ray places by it; this machine's processes ignore it."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0  # 0: unlimited
    place: Literal["spread", "pack", "here"] = "spread"  # over nodes, on few, or on the caller's own node
    restarts: int = -1  # how often a dead one is started again; -1: always
    least: int = 0  # how many there may be, when others scale
    most: int = MAX_COUNT


Kind = Literal["started", "died", "restarted", "gave up", "stopped"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to an instance."""

    kind: Kind
    service: str
    index: int
    why: str = ""  # of a death: exit code or signal, and the last lines that it wrote
    at_s: float = msgspec.field(default_factory=time.time)  # seconds since the epoch


class Pending(Protocol):
    """An answer under way. As an argument of another call (itself, not inside of one) it stands for its value, which
    on Ray then travels from the one instance to the other without passing here. Where it failed, so does that call."""

    here: bool  # whether its value is wanted here; set False for one that is only handed on: nothing is fetched for it

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once; where it is not wanted here, whether it is anywhere."""

    def result(self, seconds: float | None = None) -> Any:
        """The answer; CallTimeout, CallLost or the callee's error, as of a Solver. None: the host's own deadline. After
        CallTimeout it is still under way, and may be asked for again."""


class Handle(Protocol):
    """One instance. It outlives the process: after a restart it leads to the successor."""

    @property
    def index(self) -> int: ...

    @property
    def generation(self) -> int:
        """How often it was started again, as far as is known here."""

    def ask(self, verb: str, *args: Any, **named: Any) -> Pending:
        """Begin a call; never waits. Calls of one caller to one instance begin in their order. What it is given may
        be changed afterwards. Of a response=False verb the answer is None, once the task is queued."""


def path_of(service: type) -> str:
    """ "module:Class"; ConfigError where another process could not find it, or where it offers nothing."""
    path = f"{service.__module__}:{service.__qualname__}"
    if service.__module__ == "__main__" or "<locals>" in service.__qualname__:
        do = "Define the class in a module"
        raise ConfigError(f"{path} cannot be imported by another process", where="host", do=do)
    if not verbs_of(service):
        raise ConfigError(f"{path} has no verb", where="host", do="Decorate a method with @register()")
    return path


def construct(path: str, given: Mapping[str, Any], index: int, generation: int) -> object:
    """An instance of the class at `path`, given `index` and `generation` where its constructor has such parameters."""
    service = pkgutil.resolve_name(path)
    asked = inspect.signature(service).parameters
    own = {"index": index, "generation": generation}
    return service(**given, **{name: value for name, value in own.items() if name in asked and name not in given})


@dataclass(frozen=True, slots=True)
class Started:
    """What was started under a name."""

    path: str  # of its class
    idempotent: frozenset[str]  # verbs that may be called twice
    name: str
    needs: Resources
    given: Callable[[int, int], dict[str, Any]]  # to an instance of that number, of so many
    handles: list[Any] = field(default_factory=list)


class Host(Closable, ABC):
    """What every host does: it knows its services by name, and how many instances each has. A context manager. Closing
    it, or the end of its process, however it comes, ends all that it started. Threads may share one.

    `handles` and `runs` answer at any time, also while some instances take their time to end.
    """

    def __init__(self, url: str, discovery: str) -> None:
        self.url, self.discovery = url, discovery  # by the second URL its services find each other
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._started: dict[str, Started] = {}
        self._changing = Lock()  # one change at a time
        self._lock = Lock()  # of what is known, held for moments
        self._closed = False

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Put a large value (weights) once for each machine. As an argument (itself, not inside of one) what this
        returns stands for the value, whose arrays are read-only. It is freed when that and all uses of it are gone."""

    @abstractmethod
    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        """Those that are done, at the latest after so long; at once where one is."""

    @abstractmethod
    def _add(self, started: Started, first: int, given: Sequence[dict[str, Any]]) -> Sequence[Handle]:
        """Start instances of a service from a number on, one for each mapping."""

    @abstractmethod
    def _stop(self, handles: list[Any], by_force: bool) -> None:
        """Return when they have ended."""

    @abstractmethod
    def _close(self) -> None:
        """Give back what it held, after all instances have ended."""

    def start(self, service: type, name: str, count: int, needs: Resources, given: Given) -> list[Handle]:
        """`count` instances of the class, found by others as `name`. Each instance is also given `index` and
        `generation` where its constructor has parameters so named."""
        path, verbs = path_of(service), verbs_of(service).values()
        if not NAME.fullmatch(name):
            do = "Use at most 32 letters, digits, - and _"
            raise ConfigError(f"{name!r} cannot name a service", where="host", do=do)
        idempotent = frozenset(verb.name for verb in verbs if verb.idempotent)
        started = Started(path, idempotent, name, needs, _given_to(given, count, name))
        with self._changing:
            if name in self._started or self._closed:
                wrong = "the host is closed" if self._closed else f"{name!r} was started already"
                raise ConfigError(wrong, where="host", do="Choose another name, or scale it")
            log.info(f"starting {count} × {name} on {self.url} …")
            self._grow(started, count)
            with self._lock:
                self._started[name] = started
            return list(started.handles)

    def scale(self, name: str, count: int) -> list[Handle]:
        """So many from now on: the last leave, new ones are given what the first was, or what `given` says of them.
        Refused beyond what its needs say."""
        with self._changing:
            started = self._find(name)
            least, most = started.needs.least, started.needs.most
            if not least <= count <= most:
                keeps = f"It began with {least} and keeps them" if least == most else f"Ask for {least} to {most}"
                raise Refused(f"{count} instances", where=f"service {name}", do=keeps)
            with self._lock:
                leaving = started.handles[count:]
                del started.handles[count:]
            self._stop(leaving, False)
            self._grow(started, count)
            return list(started.handles)

    def renew(self, name: str, index: int) -> Handle:
        """Another in the place of one that hangs or was given up: that is ended by force, and this is given what it
        was. Handles of the old one lead nowhere."""
        with self._changing:
            started = self._find(name)
            self._stop([started.handles[index]], True)
            (new,) = self._add(started, index, [started.given(index, len(started.handles))])
            with self._lock:
                started.handles[index] = new
            return new

    def handles(self, name: str) -> list[Handle]:
        """Those there are now: others may scale too (`spar services scale`, see control.py)."""
        with self._lock:
            return list(self._find(name).handles)

    def runs(self) -> list[dict[str, Any]]:
        """Each service: its name, how many instances it has, how often each was restarted, and where each is, unless
        they announce that themselves (services/discovery.py)."""
        with self._lock:
            return [
                {
                    "name": one.name,
                    "count": len(one.handles),
                    "generations": [each.generation for each in one.handles],
                    "instances": self._places(one.handles),
                }
                for one in self._started.values()
            ]

    def _places(self, handles: list[Any]) -> list[dict[str, Any]]:
        """Where instances are that no discovery shows: id, address, pid, host and since_s of each."""
        return []

    def watch(self) -> Iterator[Event]:
        """What happened since this was last asked; ends where nothing more has."""
        while self._events:
            yield self._events.popleft()

    def close(self) -> None:
        """Stop every instance: asked first, killed after 3 s."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            with self._lock:
                started, self._started = self._started, {}
            self._stop([handle for one in started.values() for handle in one.handles], False)
            self._close()

    def _find(self, name: str) -> Started:
        if name not in self._started:
            known = ", ".join(sorted(self._started)) or "nothing"
            raise Missing(f"no service {name!r} was started", where="host", do=f"It runs {known}")
        return self._started[name]

    def _grow(self, started: Started, count: int) -> None:
        first = len(started.handles)
        added = self._add(started, first, [started.given(index, count) for index in range(first, count)])
        with self._lock:
            started.handles.extend(added)


def _given_to(given: Given, count: int, name: str) -> Callable[[int, int], dict[str, Any]]:
    """The constructor's arguments of an instance; of one that is added to a list's, those of the list's first."""
    if callable(given):
        return lambda index, of: dict(given(index, of))
    if isinstance(given, Mapping):
        return lambda index, of: dict(given)
    each = list(given)
    if len(each) != count:
        do = "Give one mapping for all, or one for each"
        raise ConfigError(f"{count} instances and {len(each)} mappings", where=f"service {name}", do=do)
    return lambda index, of: dict(each[index] if index < len(each) else each[0])


def open_host(url: str, logs: Path | None = None, seen: str = "", group: str = "") -> Host:
    """The host behind `local://`, `ray://auto` or `ray://HOST:PORT`; it is a context manager. What instances on this
    machine print is kept in `logs`, where that is given. `seen`: the discovery in which others find the host, and
    scale what it runs (`spar services`); by default that of this machine. Where that is a Consul, what runs here is
    found there too, as services of `group`, where one is named; on Ray calls are Ray's own."""
    scheme = urlsplit(url).scheme
    if scheme not in HOSTS:
        do = "Choose local://, ray://auto or ray://HOST:PORT"
        raise ConfigError(f"{url!r} is no host", where="host", do=do)
    where = {}
    if scheme == "local" and group and seen.startswith("consul:"):
        from sparring.services.consul_discovery import in_group

        where = {"discovery": in_group(seen, group)}
    opened: Host = pkgutil.resolve_name(HOSTS[scheme])(url, logs, seen, **where)
    return opened
