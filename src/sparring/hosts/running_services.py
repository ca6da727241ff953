"""What all hosts have in common: their services by name, and how many instances each has."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, Self, TypeVar

from sparring.errors import ConfigError, Missing, Refused
from sparring.hosts.protocol import Given, Handle, Resources
from sparring.hosts.service_class import checked_name, given_each, path_of

One = TypeVar("One", bound=Handle)


@dataclass(frozen=True, slots=True)
class Started(Generic[One]):
    """What was started under a name."""

    service: type
    name: str
    needs: Resources
    given: Callable[[int, int], dict[str, Any]]  # to an instance of that number, of so many
    handles: list[One] = field(default_factory=list)


class ServiceHost(ABC, Generic[One]):
    """What every host does: it knows its services by name, and how many instances each has. `_add` starts instances of
    a service from a number on, one for each mapping; `_stop` ends some, or by force. A context manager that closes.

    `handles` and `runs` answer at any time, also while some instances take their time to end.
    """

    def __init__(self) -> None:
        self._started: dict[str, Started[One]] = {}
        self._changing = Lock()  # one change at a time
        self._lock = Lock()  # of what is known, held for moments
        self._closed = False

    @abstractmethod
    def _add(self, started: Started[One], first: int, given: Sequence[dict[str, Any]]) -> list[One]: ...

    @abstractmethod
    def _stop(self, handles: list[One], by_force: bool) -> None: ...

    @abstractmethod
    def _close(self) -> None:
        """Give back what it held, after all instances have ended."""

    def start(self, service: type, name: str, count: int, needs: Resources, given: Given) -> list[Handle]:
        each = given_each(given, count, checked_name(name))
        path_of(service)
        with self._changing:
            if name in self._started or self._closed:
                wrong = "the host is closed" if self._closed else f"{name!r} was started already"
                raise ConfigError(wrong, where="host", do="Choose another name, or scale it")
            started: Started[One] = Started(service, name, needs, _given_later(given, each))
            started.handles.extend(self._add(started, 0, each))
            with self._lock:
                self._started[name] = started
            return list(started.handles)

    def scale(self, name: str, count: int) -> list[Handle]:
        with self._changing:
            started = self._find(name)
            _check_count(started, count)
            with self._lock:
                leaving = started.handles[count:]
                del started.handles[count:]
            self._stop(leaving, False)
            first = len(started.handles)
            added = self._add(started, first, [started.given(index, count) for index in range(first, count)])
            with self._lock:
                started.handles.extend(added)
                return list(started.handles)

    def renew(self, name: str, index: int) -> Handle:
        with self._changing:
            started = self._find(name)
            self._stop([started.handles[index]], True)
            (new,) = self._add(started, index, [started.given(index, len(started.handles))])
            with self._lock:
                started.handles[index] = new
            return new

    def handles(self, name: str) -> list[Handle]:
        with self._lock:
            return list(self._find(name).handles)

    def runs(self) -> list[dict[str, Any]]:
        """Each service: its name, how many instances it has, and how often each was restarted."""
        with self._lock:
            return [
                {"name": one.name, "count": len(one.handles), "generations": [each.generation for each in one.handles]}
                for one in self._started.values()
            ]

    def close(self) -> None:
        with self._changing:
            if self._closed:
                return
            self._closed = True
            with self._lock:
                started, self._started = self._started, {}
            self._stop([handle for one in started.values() for handle in one.handles], False)
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, name: str) -> Started[One]:
        if name not in self._started:
            known = ", ".join(sorted(self._started)) or "nothing"
            raise Missing(f"no service {name!r} was started", where="host", do=f"It runs {known}")
        return self._started[name]


def _given_later(given: Given, each: list[dict[str, Any]]) -> Callable[[int, int], dict[str, Any]]:
    """The arguments of instances that are added later: as the function says, or those of the same or the first one."""
    if callable(given):
        return lambda index, count: dict(given(index, count))
    return lambda index, count: each[index] if index < len(each) else each[0] if each else {}


def _check_count(started: Started[Any], count: int) -> None:
    least, most = started.needs.least, started.needs.most
    if not least <= count <= most:
        keeps = f"It began with {least} and keeps them" if least == most else f"Ask for {least} to {most}"
        raise Refused(f"{count} instances", where=f"service {started.name}", do=keeps)
