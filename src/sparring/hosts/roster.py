"""What a host runs: its services by name, and how many instances each has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

from sparring.errors import ConfigError, Missing
from sparring.hosts.naming import checked_name, given_each, path_of
from sparring.hosts.protocol import Handle, Resources

One = TypeVar("One", bound=Handle)


@dataclass(frozen=True, slots=True)
class Started(Generic[One]):
    """What was started under a name."""

    service: type
    name: str
    needs: Resources
    given: dict[str, Any]  # of the first
    handles: list[One] = field(default_factory=list)


class Roster(Generic[One]):
    """`add` starts instances of a service, one for each mapping, counted on from those there are; `stop` ends some."""

    def __init__(
        self, add: Callable[[Started[One], Sequence[dict[str, Any]]], list[One]], stop: Callable[[list[One]], None]
    ) -> None:
        self._add, self._stop = add, stop
        self._started: dict[str, Started[One]] = {}
        self._lock = Lock()
        self._closed = False

    def start(
        self,
        service: type,
        name: str,
        count: int,
        needs: Resources,
        given: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    ) -> list[One]:
        """As of a Host."""
        each = given_each(given, count, checked_name(name))
        path_of(service)
        with self._lock:
            if name in self._started or self._closed:
                wrong = "the host is closed" if self._closed else f"{name!r} was started already"
                raise ConfigError(wrong, where="host", do="Choose another name, or scale it")
            started: Started[One] = Started(service, name, needs, each[0] if each else {})
            started.handles.extend(self._add(started, each))
            self._started[name] = started
            return list(started.handles)

    def scale(self, name: str, count: int) -> list[One]:
        """As of a Host."""
        with self._lock:
            started = self._found(name)
            leaving = started.handles[count:]
            del started.handles[count:]
            self._stop(leaving)
            new = count - len(started.handles)
            started.handles.extend(self._add(started, [started.given] * new))
            return list(started.handles)

    def handles(self, name: str) -> list[One]:
        """As of a Host."""
        with self._lock:
            return list(self._found(name).handles)

    def runs(self) -> list[dict[str, Any]]:
        """Each service: its name, how many instances it has, and how often each was started again."""
        with self._lock:
            return [
                {"name": one.name, "count": len(one.handles), "generations": [each.generation for each in one.handles]}
                for one in self._started.values()
            ]

    def close(self) -> bool:
        """Stop all; False where it was closed before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            self._stop([handle for started in self._started.values() for handle in started.handles])
            self._started = {}
        return True

    def _found(self, name: str) -> Started[One]:
        if name not in self._started:
            known = ", ".join(sorted(self._started)) or "nothing"
            raise Missing(f"no service {name!r} was started", where="host", do=f"It runs {known}")
        return self._started[name]
