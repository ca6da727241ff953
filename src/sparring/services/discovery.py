"""Which instances offer a service, and at which address.

local://                      this user's processes on this machine (local_discovery.py)
local:///folder               those that share that folder
consul://127.0.0.1:8500       many machines, each with its Consul agent (consul_discovery.py; docs/services.md)
ray://auto/NAMESPACE          Ray's named actors (hosts/ray/discovery.py)
"""

import difflib
import importlib
import os
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import msgspec
import zmq

from sparring.errors import ConfigError

BACKENDS = {
    "local": "sparring.services.local_discovery:open_local",
    "consul": "sparring.services.consul_discovery:open_consul",
    "ray": "sparring.hosts.ray.discovery:open_ray",
}
VARIABLE = "SPARRING_DISCOVERY"


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


class Announcement(Protocol):
    """An instance that callers can find until this is closed."""

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
        """Bind an instance's socket to the address that its callers will use."""
        ...

    def connect(self, socket: "zmq.Socket[Any]", instance: Instance) -> None:
        """Connect a caller's socket to an instance."""
        ...

    def announce(self, instance: Instance) -> Announcement:
        """Let callers find it, until what is returned is closed or this process ends."""
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


class TopicPublisher(Protocol):
    """The writer of a topic."""

    def publish(self, value: Any, version: int | None = None) -> int:
        """Show `value` (plain data and arrays) to all; its version, one more than the last unless it is given."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_discovery(url: str | None = None) -> Discovery:
    """The discovery behind a URL; without one, that of SPARRING_DISCOVERY, else `local://`."""
    url = url or os.environ.get(VARIABLE) or "local://"
    scheme, sign, _ = url.partition("://")
    if not sign or scheme not in BACKENDS:
        near = difflib.get_close_matches(urlsplit(url).scheme or scheme, BACKENDS, n=1)
        do = f"Did you mean {near[0]}://" if near else f"Use one of {', '.join(f'{name}://' for name in BACKENDS)}"
        raise ConfigError(f"{url!r} is no discovery", where="services.discovery", do=do)
    module, _, name = BACKENDS[scheme].partition(":")
    opened: Discovery = getattr(importlib.import_module(module), name)(url)
    return opened
