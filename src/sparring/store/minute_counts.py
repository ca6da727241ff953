"""Counts of a sink's batches by game and minute: summed, and as rows of a table. No I/O."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from typing import Any

from sparring.store.protocol import Minute, MinuteCount

COLUMNS = [one.name for one in fields(MinuteCount)]
_PLAYERS = COLUMNS.index("players")


def to_row(count: MinuteCount) -> tuple[Any, ...]:
    """Its columns; the marks of players as 8 little-endian bytes each."""
    values = list(astuple(count))
    values[_PLAYERS] = b"".join(mark.to_bytes(8, "little", signed=True) for mark in count.players)
    return tuple(values)


def from_row(row: Sequence[Any]) -> MinuteCount:
    """The way back."""
    values, data = list(row), row[_PLAYERS]
    values[_PLAYERS] = tuple(int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8))
    return MinuteCount(*values)


def merged(counts: Iterable[MinuteCount]) -> list[MinuteCount]:
    """One count for each game and minute, in that order, under the batch of its first; a player counts once."""
    ordered = sorted(counts, key=_game_and_minute)
    return [_sum(list(group)) for _, group in itertools.groupby(ordered, key=_game_and_minute)]


def by_minute(counts: Iterable[MinuteCount]) -> list[Minute]:
    """One record for each minute of one game, over all batches."""
    return [
        Minute(
            minute_ms=one.minute_ms,
            steps=one.steps,
            chunks=one.chunks,
            players=len(one.players),
            ended=one.ended,
            mean_return=one.returns / one.ended if one.ended else None,
            lag_ms=one.lag_ms_sum / one.chunks if one.chunks else 0.0,
            lag_ms_max=one.lag_ms_max,
        )
        for one in merged(counts)
    ]


def _game_and_minute(count: MinuteCount) -> tuple[str, int]:
    return count.game, count.minute_ms


def _sum(counts: list[MinuteCount]) -> MinuteCount:
    return MinuteCount(
        game=counts[0].game,
        minute_ms=counts[0].minute_ms,
        batch=counts[0].batch,
        steps=sum(one.steps for one in counts),
        chunks=sum(one.chunks for one in counts),
        players=tuple(sorted({mark for one in counts for mark in one.players})),
        ended=sum(one.ended for one in counts),
        returns=sum(one.returns for one in counts),
        lag_ms_sum=sum(one.lag_ms_sum for one in counts),
        lag_ms_max=max(one.lag_ms_max for one in counts),
    )
