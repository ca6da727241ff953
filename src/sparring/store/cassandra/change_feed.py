"""The changes of a game: every row once, however often it is asked; a call costs what came since the last.

Rows by arrival carry their writer's clock. A partition is read again until its last change is older than SETTLED_US,
each time from that far back: so clocks that differ by less, and slow writers, hide nothing.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparring.store.cassandra.partitions import Partition
from sparring.store.cassandra.reader import buckets, days
from sparring.store.cassandra.session import CassandraSession
from sparring.store.rows import Row
from sparring.wire.ids import GameId

SETTLED_US = 120_000_000
PAGES = (128, 4_096)  # rows in the first page and in later ones

_REMOVED = "SELECT removed FROM removals WHERE game = ?"


class Arrival(NamedTuple):
    """A row of `chunks_by_arrival`: what counts and samples need of a chunk."""

    arrived: int
    episode: str
    seat: int
    first_step: int
    steps: int
    version: str
    source: str
    actor: str
    mark: int | None
    ending: str
    received_at_ms: int
    size_bytes: int

    @classmethod
    def of(cls, row: Row, arrived: int) -> "Arrival":
        return cls(arrived, *(getattr(row, name) for name in cls._fields[1:]))

    @property
    def key(self) -> tuple[str, int, int]:
        return self.episode, self.seat, self.first_step


ARRIVAL_COLUMNS = ", ".join(Arrival._fields)
_SINCE = f"""SELECT {ARRIVAL_COLUMNS} FROM chunks_by_arrival
    WHERE game = ? AND day = ? AND bucket = ? AND arrived > ?"""


def removals(session: CassandraSession, game: GameId) -> int:
    """How often something was removed; what was read before that is to be read again."""
    found = session.one(session.look(_REMOVED, (game,)))
    return int(found[0][0]) if found else 0


@dataclass(slots=True)
class _Seen:
    """How far one partition was read."""

    changed: int = -1
    settled: bool = False
    newest: int = 0
    recent: dict[tuple[str, int, int], int] = field(default_factory=dict)  # rows that will be read again


class ChangeFeed:
    """How far a game was read."""

    def __init__(self) -> None:
        self._days: dict[int, tuple[int, bool]] = {}
        self._partitions: dict[Partition, _Seen] = {}

    def new(self, session: CassandraSession, game: GameId) -> Iterator[tuple[Partition, list[Arrival], bool]]:
        """For each partition with news: its new rows, and whether these are all that it has."""
        for day, changed in days(session, game):
            if self._days.get(day) == (changed, True):
                continue
            now_us = time.time_ns() // 1_000
            due = []
            for partition, at in buckets(session, game, day):
                seen = self._partitions.setdefault(partition, _Seen())
                if seen.changed != at or not seen.settled:
                    due.append((partition, seen))
                    seen.changed, seen.settled = at, now_us - at > SETTLED_US
            streams = [(partition, seen, _since(session, partition, seen)) for partition, seen in due]
            for partition, seen, rows in streams:
                first = seen.newest == 0
                if new := _fresh(seen, rows):
                    yield partition, new, first
            self._days[day] = changed, now_us - changed > SETTLED_US


def _since(session: CassandraSession, partition: Partition, seen: _Seen) -> Any:
    return session.pages(session.scan(_SINCE, (*partition, seen.newest - SETTLED_US)), *PAGES)


def _fresh(seen: _Seen, rows: Iterator[tuple[Any, ...]]) -> list[Arrival]:
    read = [Arrival(*row) for row in rows]
    # Two writers of the same chunk at once (a batch done again) leave two rows, moments apart: it counts once.
    first = {row.key: row for row in reversed(read)}
    new = [row for row in read if row.key not in seen.recent and first[row.key] is row]
    seen.newest = max([seen.newest, *(row.arrived for row in read)])
    horizon = seen.newest - SETTLED_US
    seen.recent = {row.key: row.arrived for row in read if row.arrived > horizon}
    return new
