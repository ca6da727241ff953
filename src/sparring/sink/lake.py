"""Training-ready Parquet beside the store: one file for each batch, game, version and seat, under s3://….

    game=GAME/version=VERSION/seat=SEAT/day=2026-01-31/BATCH.parquet

A file is named after its batch, so a batch that is written again replaces its own file. Pseudonyms stay out: erasing
a player reaches the store, and must not leave them here.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self
from urllib.parse import quote

import msgspec

from sparring.registry.s3.bucket import Address, Bucket
from sparring.store.exchange.parquet import encode
from sparring.wire.chunk import Chunk


class Lake:
    """A context manager over one prefix of one bucket."""

    def __init__(self, url: str) -> None:
        """Reaches the bucket; a wrong one is said at once."""
        self._bucket = Bucket(Address.read(url, "sink.lake_url"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._bucket.close()

    def write(self, batch: str, chunks: Sequence[Chunk]) -> None:
        """Put the batch's files there; durable on return."""
        files: dict[str, list[Chunk]] = {}
        for chunk in chunks:
            files.setdefault(folder_of(chunk), []).append(nameless(chunk))
        for folder, held in files.items():
            key = f"{folder}/{_plain(batch)}.parquet"
            self._bucket.put(key, encode(held, key))


def folder_of(chunk: Chunk) -> str:
    """The folder of such chunks: those of one game, version and seat have the same columns."""
    head = chunk.header
    day = datetime.fromtimestamp(head.received_at_ms / 1000, UTC).date().isoformat()
    return f"game={_plain(head.game)}/version={_plain(head.version)}/seat={head.seat}/day={day}"


def nameless(chunk: Chunk) -> Chunk:
    """The chunk without its player."""
    return Chunk(msgspec.structs.replace(chunk.header, player=None), chunk.columns, chunk.body)


def _plain(text: str) -> str:
    return quote(text, safe="-_.@")
