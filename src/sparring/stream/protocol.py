"""What every stream offers: chunks taken in, kept in order within an episode, read again shard by shard.

A stream cannot say whether it had a chunk before: it answers "taken", and delivers at least once. The
store finds what came twice, and the sink what is wrong with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NewType, Protocol, Self

from sparring.store.protocol import Appended
from sparring.wire.chunk import Chunk

Position = NewType("Position", str)  # within one shard, opaque; BEGINNING comes before everything it still keeps
BEGINNING = Position("")


@dataclass(frozen=True, slots=True)
class Shard:
    """One ordered part of a stream. After a split or a merge a shard has parents, to be read to their end first."""

    id: str
    parents: tuple[str, ...] = ()
    closed: bool = False  # takes nothing more; it ends, and its children go on


@dataclass(frozen=True, slots=True)
class Placed:
    """One chunk at its position in a shard, not yet decoded: its reader quarantines what does not decode."""

    shard: str
    position: Position  # read on after this one
    arrived_ms: int  # when the gateway got it; without one, when the stream took it
    uploader: str  # who put it there
    data: bytes  # an encoded chunk, if all is well


@dataclass(frozen=True, slots=True)
class Page:
    """What was read at once. `ended`: the shard is closed and has nothing after `position`."""

    placed: list[Placed]
    position: Position
    ended: bool
    behind_ms: int  # how far its newest is behind the shard's own newest, as the stream says


class Stream(Protocol):
    """A context manager, which every backend inherits. Safe to call from several threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """Take the chunks in; in the stream on return, "taken" for each. Order is kept within an episode."""
        ...

    def shards(self) -> list[Shard]:
        """Every shard that still keeps something, parents before children."""
        ...

    def page(self, shard: Shard, after: Position, *, limit: int = 10_000) -> Page:
        """The chunks after a position, at most one read's worth; an empty page when there are none now."""
        ...

    def read(self, shard: Shard, after: Position) -> Iterator[Placed]:
        """Everything there is after a position, page by page; ends where the shard has nothing more for now."""
        ...

    def tip(self, shard: Shard, after: Position) -> Position:
        """A position near the shard's end, found without reading all before it; `after` where nothing is new."""
        ...

    def ready(self) -> None:
        """Return where it can be written, as far as asking tells; raise what is wrong otherwise."""
        ...

    def close(self) -> None:
        """Close the connections; calls that wait end at once."""
        ...
