"""Batches planned ahead of their reading, as Spark wants them: from one offset to the next, the same whenever asked.

An offset is {"run": …, "shards": {ID: {"position": …, "ended": …}}}. `run` names the driver that planned up to there:
a batch read under another driver than its planner's is read again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparring.sink.shard_positions import ShardPosition, readable, remembered
from sparring.stream.protocol import Page, Placed, Position, Shard, Stream

PAGE_CHUNKS = 10_000

Offset = dict[str, Any]  # as Spark keeps it, in JSON
START: Offset = {"run": "", "shards": {}}


@dataclass(frozen=True, slots=True)
class ShardRange:
    """A part of one shard. `until` is None where it is read to its end."""

    shard: str
    after: Position
    until: Position | None


def positions_of(offset: Offset) -> dict[str, ShardPosition]:
    """How far each shard was read at an offset."""
    return {name: ShardPosition(Position(one["position"]), one["ended"]) for name, one in offset["shards"].items()}


def planned(stream: Stream, start: Offset, run: str) -> Offset:
    """Where a batch from `start` may end now; `start` itself where nothing is new.

    A shard that takes nothing more is planned to its end, and its children one batch later.
    """
    before, shards = positions_of(start), stream.shards()
    reached = dict(before)
    for shard in readable(shards, before):
        place = before.get(shard.id, ShardPosition())
        if shard.closed:
            reached[shard.id] = ShardPosition(place.position, ended=True)
        else:
            tip = stream.tip(shard, place.position)
            if tip != place.position:
                reached[shard.id] = ShardPosition(tip)
    if reached == before:
        return start
    kept = remembered(shards, reached)
    return {
        "run": run,
        "shards": {name: {"position": place.position, "ended": place.ended} for name, place in sorted(kept.items())},
    }


def between(start: Offset, end: Offset) -> list[ShardRange]:
    """What lies between two offsets, one range for each shard that has something there."""
    before, after = positions_of(start), positions_of(end)
    found = []
    for name, place in after.items():
        begun = before.get(name, ShardPosition())
        if begun.ended or begun == place:
            continue
        found.append(ShardRange(name, begun.position, None if place.ended else place.position))
    return found


def pages(stream: Stream, wanted: ShardRange) -> Iterator[list[Placed]]:
    """The chunks of a range, page by page.

    Where the stream has forgotten its end meanwhile, what is left now: a little more than was planned, which
    the next batch will read again, and the store has then.
    """
    shard, after = Shard(wanted.shard), wanted.after
    while True:
        page = stream.page(shard, after, limit=PAGE_CHUNKS)
        placed = page.placed
        for at, one in enumerate(placed):
            if one.position == wanted.until:
                yield placed[: at + 1]
                return
        if placed:
            yield placed
        after = page.position
        if _over(page, wanted):
            return


def read_until(stream: Stream, shard: Shard, after: Position, until: Position) -> Page:
    """What lies after one position up to and including another, as one page."""
    placed = [one for some in pages(stream, ShardRange(shard.id, after, until)) for one in some]
    return Page(placed, placed[-1].position if placed else after, ended=False, behind_ms=0)


def _over(page: Page, wanted: ShardRange) -> bool:
    # A shard that is to be read to its end is closed, so its end comes; an empty page before it means nothing.
    return page.ended or (wanted.until is not None and not page.placed and not page.behind_ms)
