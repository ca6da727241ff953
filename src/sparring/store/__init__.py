"""Stored experience: one protocol, one folder per backend, chosen by URL."""

from typing import TYPE_CHECKING, Any

from sparring.urls import backend

if TYPE_CHECKING:
    from sparring.store.protocol import Store

BACKENDS = {  # scheme → module with `open_url(url, **settings) -> Store`
    "sqlite": "sparring.store.sqlite.store",
    "cassandra": "sparring.store.cassandra.store",
}


def open_store(url: str, **settings: Any) -> "Store":
    """The store at `url`, opened and checked. `settings` are the backend's own (docs/store.md)."""
    store: Store = backend(url, BACKENDS, "store", "[store] url", extra="cassandra").open_url(url, **settings)
    return store
