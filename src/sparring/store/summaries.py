"""Counts of one game and sample tables of one query, as every backend holds them in memory. No I/O.

A backend adds what was stored since its last look; after a removal (erasure, retention) it starts from nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.store.protocol import GameStats
from sparring.wire.chunk import Array, Chunk
from sparring.wire.ids import GameId

TABLES = 4  # queries remembered; a trainer has one or two
MOST_MISSES = 1_000  # chunks in one sample that were damaged or erased a moment ago


@dataclass(slots=True)
class GameCounts:
    """What is counted of one game, since the removal number `removals`."""

    removals: int
    chunks: int = 0
    size_bytes: int = 0
    episodes: int = 0
    players: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    incomplete: set[str] = field(default_factory=set)
    by_source: Counter[str] = field(default_factory=Counter)
    by_version: Counter[str] = field(default_factory=Counter)

    def add(
        self, source: str, version: str, chunks: int, steps: int, size_bytes: int, first_ms: int, last_ms: int
    ) -> None:
        """More chunks of one source and version, received from `first_ms` to `last_ms`."""
        self.chunks += chunks
        self.size_bytes += size_bytes
        self.by_source[source] += steps
        self.by_version[version] += steps
        self.first_ms = first_ms if self.first_ms is None else min(first_ms, self.first_ms)
        self.last_ms = last_ms if self.last_ms is None else max(last_ms, self.last_ms)

    def note(self, episode: str, complete: bool) -> None:
        """Whether an episode with new chunks is complete now."""
        (self.incomplete.discard if complete else self.incomplete.add)(episode)

    def stats(self, game: GameId) -> GameStats:
        """The counts as a record."""
        return GameStats(
            game=game,
            chunks=self.chunks,
            steps=self.by_source.total(),
            episodes=self.episodes,
            incomplete_episodes=len(self.incomplete),
            players=self.players,
            encoded_bytes=self.size_bytes,
            first_received_ms=self.first_ms,
            last_received_ms=self.last_ms,
            steps_by_source=dict(self.by_source),
            steps_by_version=dict(self.by_version),
        )


class SampleTable:
    """The chunks of one query: a key of the backend's for each, and the running sum of their steps."""

    def __init__(self, removals: int, key_type: str = "int64") -> None:
        self.removals = removals
        self.keys: Array = np.zeros(0, key_type)
        self.ends: Array = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: Iterable[Any], steps: Iterable[int]) -> None:
        """More chunks, and the steps of each."""
        start = self.ends[-1] if len(self.ends) else 0
        self.keys = np.concatenate((self.keys, np.array(list(keys), self.keys.dtype)))
        self.ends = np.concatenate((self.ends, start + np.cumsum(np.array(list(steps), np.int64))))

    def draw(self, steps: int, rng: Generator) -> list[Any]:
        """Keys of chunks that hold `steps` on average, each drawn as often as it has steps."""
        total = int(self.ends[-1])
        count = max(1, round(steps * len(self.keys) / total))
        picks: list[Any] = self.keys[np.searchsorted(self.ends, rng.integers(0, total, count), side="right")].tolist()
        return picks


def draw_chunks(
    table: SampleTable, steps: int, rng: Generator, fetch: Callable[[list[Any]], Iterable[Chunk | None]]
) -> list[Chunk]:
    """Chunks of the table until they hold `steps`. `fetch` gives None for one that is damaged, or erased meanwhile."""
    drawn: list[Chunk] = []
    held = misses = 0
    while held < steps and len(table) and misses < MOST_MISSES:
        for chunk in fetch(table.draw(steps - held, rng)):
            if chunk is None:
                misses += 1
                continue
            drawn.append(chunk)
            held += chunk.header.steps
            if held >= steps:
                break
    return drawn
