"""Records in order on their way to the store: one protocol, one file per backend, chosen by URL."""

import importlib
from typing import TYPE_CHECKING, Any

from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.stream.protocol import Stream

BACKENDS = {"kinesis": "sparring.stream.kinesis"}  # scheme → module with `open_url(url, **settings) -> Stream`


def open_stream(url: str, **settings: Any) -> "Stream":
    """The stream at `url`, reached and checked."""
    scheme = url.partition("://")[0]
    if scheme not in BACKENDS:
        known = ", ".join(f"{name}://" for name in BACKENDS)
        raise ConfigError(f"no stream speaks {url!r}", where="[stream] url", do=f"Use one of {known}")
    stream: Stream = importlib.import_module(BACKENDS[scheme]).open_url(url, **settings)
    return stream
