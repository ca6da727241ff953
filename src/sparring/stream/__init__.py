"""Streams of records on their way to the store: one protocol, one folder per backend, chosen by URL."""

import importlib
from typing import TYPE_CHECKING, Any

from sparring.errors import ConfigError, Missing

if TYPE_CHECKING:
    from sparring.stream.protocol import Stream

BACKENDS = {"kinesis": "sparring.stream.kinesis.stream"}  # scheme → module with `open_url(url, **settings) -> Stream`


def open_stream(url: str, **settings: Any) -> "Stream":
    """The stream at `url`, reached and checked. `settings` are the backend's own (docs/stream.md)."""
    scheme = url.partition("://")[0]
    if scheme not in BACKENDS:
        known = ", ".join(f"{name}://" for name in BACKENDS)
        raise ConfigError(f"no stream speaks {url!r}", where="[stream] url", do=f"Use one of {known}")
    try:
        module = importlib.import_module(BACKENDS[scheme])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sparring"):
            raise
        do = "Run pip install 'sparring[aws]'"
        where = settings.get("setting", "[stream] url")
        raise Missing(f"the package {error.name!r} is not installed", where=where, do=do) from None
    stream: Stream = module.open_url(url, **settings)
    return stream
