"""Counts of batches, summed up by the minute; and the marks of players as bytes. No I/O."""

import itertools
from collections.abc import Iterable

from sparring.store.protocol import Minute, MinuteCount


def packed(marks: Iterable[int]) -> bytes:
    """Marks as 8 little-endian bytes each; `unpacked` is the way back."""
    return b"".join(mark.to_bytes(8, "little", signed=True) for mark in marks)


def unpacked(data: bytes) -> tuple[int, ...]:
    """The marks in `data`."""
    return tuple(int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8))


def summed(counts: Iterable[MinuteCount]) -> list[Minute]:
    """One Minute for each, from counts in the order of their minutes; a player in two batches counts once."""
    return [_minute(at, list(group)) for at, group in itertools.groupby(counts, key=lambda count: count.minute_ms)]


def _minute(minute_ms: int, counts: list[MinuteCount]) -> Minute:
    chunks, ended = sum(one.chunks for one in counts), sum(one.ended for one in counts)
    return Minute(
        minute_ms=minute_ms,
        steps=sum(one.steps for one in counts),
        chunks=chunks,
        players=len({mark for one in counts for mark in one.players}),
        ended=ended,
        mean_return=sum(one.returns for one in counts) / ended if ended else None,
        lag_ms=sum(one.lag_ms_sum for one in counts) / chunks if chunks else 0.0,
        lag_ms_max=max(one.lag_ms_max for one in counts),
    )
