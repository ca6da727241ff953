"""Stored experience: one protocol, one folder per backend, chosen by URL."""

import importlib
from typing import TYPE_CHECKING, Any

from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.store.protocol import LedgerStore

BACKENDS = {  # scheme → module with `open_url(url, **settings) -> Store`
    "sqlite": "sparring.store.sqlite.store",
    "cassandra": "sparring.store.cassandra",
}


def open_store(url: str, **settings: Any) -> "LedgerStore":
    """The store at `url`, opened and checked. `settings` are the backend's own (docs/store.md)."""
    scheme = url.partition("://")[0]
    if scheme not in BACKENDS:
        known = ", ".join(f"{name}://" for name in BACKENDS)
        raise ConfigError(f"no store speaks {url!r}", where="[store] url", do=f"Use one of {known}")
    store: LedgerStore = importlib.import_module(BACKENDS[scheme]).open_url(url, **settings)
    return store
