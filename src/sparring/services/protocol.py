"""What all know of an instance, and what a way of finding them can do. Opened by its URL in discovery.py."""

from typing import Any, Protocol, Self

import msgspec
import zmq


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a service."""

    service: str
    id: str
    address: str  # "ipc:///…", "tcp://host:port"
    pid: int = 0
    idempotent: tuple[str, ...] = ()  # verbs that may be asked again elsewhere
    key: str = ""  # its public CURVE key, between machines
    host: str = ""  # the machine's name, of one that is not this
    since_s: float = 0.0  # when it was announced, in seconds since the epoch


class Announced(Protocol):
    """An instance that others can find until this is closed."""

    def close(self) -> None: ...


class ServerSocket(Protocol):
    """Where an instance listens. Close it before its context, after its socket."""

    @property
    def address(self) -> str:
        """For callers of this machine."""
        ...

    def close(self) -> None: ...


class Discovery(Protocol):
    """Threads may call it."""

    def listen(self, socket: "zmq.Socket[bytes]", service: str, id: str) -> ServerSocket:
        """Bind an instance's socket where its callers will come."""
        ...

    def connect(self, socket: "zmq.Socket[Any]", instance: Instance) -> None:
        """Connect a caller's socket to an instance."""
        ...

    def announce(self, instance: Instance) -> Announced:
        """Let others find it, until what is returned is closed or this process ends."""
        ...

    def instances(self, service: str) -> tuple[Instance, ...]:
        """Those that live, as far as is known. Cheap: it is asked before each call."""
        ...

    def alive(self, instance: Instance) -> bool:
        """Whether it still is there, as far as is known."""
        ...

    def services(self) -> tuple[str, ...]:
        """The names of all services that have instances."""
        ...

    def close(self) -> None: ...


class Publishes(Protocol):
    """The writer of a topic."""

    def publish(self, value: Any, version: int | None = None) -> int:
        """Show `value` (plain data and arrays) to all; its version, one more than the last unless it is given."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
