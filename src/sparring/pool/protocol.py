"""What a pool offers, where a backend holds its entries, and how one is opened by its URL."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sparring.closable import Closable
from sparring.urls import backend
from sparring.wire.ids import ModelId
from sparring.wire.model import Model

if TYPE_CHECKING:
    from sparring.registry.registry import Registry
    from sparring.services.solver import Solver

SETTING = "[league] pool_url"
BACKENDS = {  # scheme → module with `open_url(url, registry, solver) -> Pool`
    "memory": "sparring.pool.memory",
    "redis": "sparring.pool.redis",
    "rediss": "sparring.pool.redis",
}
OPTIONS = {  # of every backend's URL
    "max_bytes": (r"\d{1,15}", "a number of bytes"),
    "cache_bytes": (r"\d{1,15}", "a number of bytes"),
    "timeout_s": (r"(?=.*[1-9])\d{1,3}(\.\d+)?", "seconds, above 0 and below 1000"),
}


class Pool(Closable, Protocol):
    """Models by content, for every process of a league. Threads may share one. A pool is a cache: it may forget a
    model at any time, and then reads it again from the registry that it was opened with."""

    def put(self, model: Model) -> None:
        """Offer the model to all. ModelDamaged where it is not what its card says, Refused where it is larger than the
        pool, StoreFailed where the server has no room."""

    def get(self, model_id: ModelId) -> Model:
        """Those exact bytes, verified; never another model. Without a registry Missing or ModelDamaged where the pool
        has them no more; with one, its errors. Unreachable where the pool's server does not answer."""

    def ids(self) -> list[ModelId]:
        """What the pool holds now, in the order of the ids."""

    def drop(self, model_id: ModelId) -> None:
        """Forget the model; harmless where it is not there. Processes that have read it may keep it."""


class Entries(Protocol):
    """Where a backend holds models as bytes, each under its id. Its str() is its address, without a secret."""

    private: bool  # nobody writes there but pools

    def put(self, model: ModelId, entry: bytes) -> None:
        """Hold the entry in place of what was there; readers get the old one or the new, whole."""

    def get(self, model: ModelId) -> bytes | memoryview | None: ...

    def ids(self) -> list[ModelId]: ...

    def drop(self, model: ModelId) -> None: ...

    def close(self) -> None: ...


def converted(said: Mapping[str, str]) -> dict[str, Any]:
    """A URL's options as values."""
    kinds = {"max_bytes": int, "cache_bytes": int, "timeout_s": float}
    return {name: kinds.get(name, str)(value) for name, value in said.items()}


def open_pool(url: str, registry: "Registry | None" = None, solver: "Solver | None" = None) -> Pool:
    """The pool at memory://, redis://HOST:PORT/DATABASE or rediss://… (docs/pool.md); a context manager.

    memory:// is the service that `serve_pool` started, found by `solver`, or else by SPARRING_DISCOVERY, which every
    host sets for its instances; without either it is memory of this process alone.
    """
    opened: Pool = backend(url, BACKENDS, "pool", SETTING, extra="redis").open_url(url, registry, solver)
    return opened
