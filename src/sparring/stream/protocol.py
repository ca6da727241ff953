"""What every stream offers: chunks taken in, kept in order within an episode, read again shard by shard.

A stream cannot say whether it had a chunk before: it answers "taken", and delivers at least once. The
store finds what came twice, and the sink what is wrong with it. The functions at the end are for readers: which shards
come first, how far each was read, and ranges of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NewType, Protocol

import msgspec

from sparring.closable import Closable
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


class ShardPosition(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far one shard was read, as a checkpoint holds it."""

    position: Position = BEGINNING
    ended: bool = False  # nothing will ever come after it
    until: Position | None = None  # the end of a batch that was begun, and maybe not finished


@dataclass(frozen=True, slots=True)
class ShardRange:
    """A part of one shard. `until` is None where it is read to its end."""

    shard: str
    after: Position
    until: Position | None


class Stream(Closable, Protocol):
    """A context manager, which every backend inherits. Safe to call from several threads."""

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """Take the chunks in; in the stream on return, "taken" for each. Order is kept within an episode."""

    def shards(self) -> list[Shard]:
        """Every shard that still keeps something, parents before children."""

    def page(self, shard: Shard, after: Position, *, limit: int = 10_000) -> Page:
        """The chunks after a position, at most one read's worth; an empty page when there are none now."""

    def read(self, shard: Shard, after: Position) -> Iterator[Placed]:
        """Everything there is after a position, page by page; ends where the shard has nothing more for now."""
        while True:
            page = self.page(shard, after)
            yield from page.placed
            after = page.position
            if page.ended or not (page.placed or page.behind_ms):  # an empty page is not yet the end
                return

    def tip(self, shard: Shard, after: Position) -> Position:
        """A position near the shard's end, found without reading all before it; `after` where nothing is new."""

    def ready(self) -> None:
        """Return where it can be written, as far as asking tells; raise what is wrong otherwise."""

    def close(self) -> None:
        """Close the connections; calls that wait end at once."""


def in_order(shards: Iterable[Shard]) -> list[Shard]:
    """Parents before children, otherwise by name. A parent that retention has removed is dropped."""
    known = {shard.id: shard for shard in sorted(shards, key=lambda shard: shard.id)}
    ordered: dict[str, Shard] = {}
    for _ in known:  # the tree is at most as deep as it is large
        for shard in known.values():
            parents = tuple(parent for parent in shard.parents if parent in known)
            if shard.id not in ordered and all(parent in ordered for parent in parents):
                ordered[shard.id] = replace(shard, parents=parents)
    return list(ordered.values())


def readable(shards: Iterable[Shard], positions: Mapping[str, ShardPosition]) -> list[Shard]:
    """The shards to read now: not at their end, every parent at its own. So an episode's order survives a reshard."""
    ended = {name for name, at in positions.items() if at.ended}
    return [shard for shard in shards if shard.id not in ended and all(parent in ended for parent in shard.parents)]


def still_there(shards: Iterable[Shard], positions: Mapping[str, ShardPosition]) -> dict[str, ShardPosition]:
    """The positions worth writing down: of shards that the stream still has."""
    names = {shard.id for shard in shards}
    return {name: at for name, at in positions.items() if name in names}


def pages(stream: Stream, wanted: ShardRange) -> Iterator[list[Placed]]:
    """The chunks of a range, page by page.

    Where retention has removed its end meanwhile, everything that is left now: a little more than was planned, which
    the next batch will read again, and the store has then.
    """
    after = wanted.after
    while True:
        page = stream.page(Shard(wanted.shard), after)
        for at, one in enumerate(page.placed):
            if one.position == wanted.until:
                yield page.placed[: at + 1]
                return
        if page.placed:
            yield page.placed
        after = page.position
        # A shard that is to be read to its end is closed, so its end comes; an empty page before it means nothing.
        if page.ended or (wanted.until is not None and not page.placed and not page.behind_ms):
            return
