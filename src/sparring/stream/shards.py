"""Shards as their readers need them: which come first, how far each was read, and ranges of them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sparring.stream.protocol import BEGINNING, Page, Placed, Position, Shard, Stream

PAGE_CHUNKS = 10_000


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """How far one shard was read. `ended`: nothing will ever come after it."""

    position: Position = BEGINNING
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ShardRange:
    """A part of one shard. `until` is None where it is read to its end."""

    shard: str
    after: Position
    until: Position | None


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


def ended(positions: Mapping[str, ShardPosition]) -> set[str]:
    """The shards that were read to their end."""
    return {name for name, at in positions.items() if at.ended}


def readable(shards: Iterable[Shard], ended: Collection[str]) -> list[Shard]:
    """The shards to read now: not at their end, every parent at its own. So an episode's order survives a reshard."""
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
        page = stream.page(Shard(wanted.shard), after, limit=PAGE_CHUNKS)
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


def read_until(stream: Stream, shard: Shard, after: Position, until: Position) -> Page:
    """The chunks after one position up to and including another, as one page."""
    placed = [one for some in pages(stream, ShardRange(shard.id, after, until)) for one in some]
    return Page(placed, placed[-1].position if placed else after, ended=False, behind_ms=0)
