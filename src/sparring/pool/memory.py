"""memory://: a service that holds entries in the memory of one instance, and how a process finds it.

    serve_pool(host, "memory://?max_bytes=4000000000")     # once, where the league starts its services
    pool = open_pool("memory://", registry)                # in every process of the league

memory://NAME names the service, where several leagues share one discovery. The service starts empty, again after a
crash: then each model is read from the registry once more. Where no discovery is known, memory:// is memory of this
process alone.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparring.pool.cached_pool import CACHE_BYTES, CachedPool, LeastRecentlyUsed
from sparring.pool.protocol import OPTIONS, SETTING, converted
from sparring.registry.registry import Registry
from sparring.services.register import register
from sparring.urls import read_url
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId

if TYPE_CHECKING:
    from sparring.hosts.protocol import Host
    from sparring.services.solver import Solver

MAX_BYTES = 1 << 30
START_S = 180.0  # for the service's first answer
_FORM = "memory:// or memory://NAME (at most 32 letters, digits, - and _)"


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """What a URL says."""

    service: str = "pool"
    max_bytes: int = MAX_BYTES  # of the service's entries, or of this process's own models
    cache_bytes: int = CACHE_BYTES  # of the models that a process has read
    timeout_s: float = 10.0  # for one call; a crashed service is back within seconds

    @classmethod
    def read(cls, url: str) -> "MemoryAddress":
        """The address in `url`; ConfigError with the right form where it is none."""
        parts, said = read_url(url, SETTING, "([A-Za-z0-9][A-Za-z0-9_-]{0,31})?", _FORM, "nothing", OPTIONS)
        return cls(service=parts.netloc or "pool", **converted(said))


class PoolService:
    """Entries in the memory of this instance; the longest unused goes first. Every verb may be called twice."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._entries = LeastRecentlyUsed[Array](max_bytes)

    @register(idempotent=True, full="wait")
    def put(self, model: str, entry: Array) -> None:
        self._entries.put(ModelId(model), entry.copy(), entry.nbytes)  # a copy: the caller lends us its memory

    @register(idempotent=True, full="wait")
    def get(self, model: str) -> Array | None:
        return self._entries.get(ModelId(model))

    @register(idempotent=True, full="wait")
    def ids(self) -> list[ModelId]:
        return self._entries.ids()

    @register(idempotent=True, full="wait")
    def drop(self, model: str) -> None:
        self._entries.drop(ModelId(model))


class ServiceEntries:
    """The entries of a PoolService, wherever it runs; see `protocol.Entries`."""

    private = True

    def __init__(self, solver: "Solver", service: str, *, owns_solver: bool) -> None:
        self._solver, self._service, self._owns = solver, service, owns_solver

    def __str__(self) -> str:
        return f"memory://{self._service}"

    def put(self, model: ModelId, entry: bytes) -> None:
        self._solver.retrieve(self._service, "put", model, np.frombuffer(entry, np.uint8))

    def get(self, model: ModelId) -> memoryview | None:
        found: Array | None = self._solver.retrieve(self._service, "get", model)
        return None if found is None else found.data

    def ids(self) -> list[ModelId]:
        return [ModelId(one) for one in self._solver.retrieve(self._service, "ids")]

    def drop(self, model: ModelId) -> None:
        self._solver.retrieve(self._service, "drop", model)

    def close(self) -> None:
        if self._owns:
            self._solver.close()


def serve_pool(host: "Host", url: str) -> None:
    """Start the pool's service on the host, where the URL needs one, and wait for its first answer."""
    from sparring.hosts.protocol import Resources

    if url.partition("://")[0] == "memory":
        said = MemoryAddress.read(url)
        needs = Resources(cpus=0.1, place="here", least=1, most=1)
        (service,) = host.start(PoolService, said.service, 1, needs, {"max_bytes": said.max_bytes})
        service.ask("ids").result(START_S)


def open_url(url: str, registry: Registry | None, solver: "Solver | None") -> CachedPool:
    """The pool at memory://…; see `open_pool`."""
    said = MemoryAddress.read(url)
    if solver is None and not os.environ.get("SPARRING_DISCOVERY"):
        return CachedPool(None, registry, said.max_bytes)
    from sparring.services.solver import Solver

    entries = ServiceEntries(
        Solver(deadline_s=said.timeout_s) if solver is None else solver.within(said.timeout_s),
        said.service,
        owns_solver=solver is None,
    )
    return CachedPool(entries, registry, said.cache_bytes)
