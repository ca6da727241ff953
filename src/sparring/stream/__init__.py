"""Streams of records on their way to the store: one protocol, one folder per backend, chosen by URL."""

from typing import TYPE_CHECKING, Any

from sparring.urls import backend

if TYPE_CHECKING:
    from sparring.stream.protocol import Stream

BACKENDS = {"kinesis": "sparring.stream.kinesis.stream"}  # scheme → module with `open_url(url, **settings) -> Stream`


def open_stream(url: str, *, setting: str = "[stream] url", **settings: Any) -> "Stream":
    """The stream at `url`, reached and checked; `setting` is where the URL was written, for errors."""
    stream: Stream = backend(url, BACKENDS, "stream", setting, extra="aws").open_url(url, setting=setting, **settings)
    return stream
