"""What is known of an episode, and what a chunk is judged by. No I/O."""

import bisect
from dataclasses import dataclass, field

from sparring.store.cassandra.partitions import Partition
from sparring.store.protocol import AppendResult
from sparring.store.rows import Neighbour, Prepared, Row, judge

SeatStep = tuple[int, int]  # seat, first_step


@dataclass(slots=True)
class PendingChunk:
    """A chunk on its way in."""

    at: int  # in the append
    ready: Prepared
    partition: Partition
    arrived: int  # microseconds, rising: the order of receipt

    @property
    def row(self) -> Row:
        return self.ready.row

    @property
    def seat_step(self) -> SeatStep:
        return self.row.seat, self.row.first_step


@dataclass(slots=True)
class EpisodeState:
    """The chunks of one episode: those kept, and those that a writer has claimed and not yet written."""

    revision: int | None = None
    seats: dict[int, list[Neighbour]] = field(default_factory=dict)  # by first_step
    arrived: dict[SeatStep, int] = field(default_factory=dict)  # of those kept
    claimed: set[SeatStep] = field(default_factory=set)

    def add(self, seat: int, near: Neighbour) -> None:
        """One more chunk, in its partition."""
        bisect.insort(self.seats.setdefault(seat, []), near, key=lambda one: one.first_step)

    def judge(self, chunk: PendingChunk) -> AppendResult:
        """Whether the chunk may stand; what may counts as there for the next one."""
        row, near = chunk.row, self.seats.get(chunk.row.seat, [])
        at = bisect.bisect_right(near, row.first_step, key=lambda one: one.first_step)
        kept = judge(row, near[at - 1] if at else None, near[at] if at < len(near) else None)
        if kept.verdict == "new":
            self.add(row.seat, Neighbour(row.first_step, row.steps, row.ending, row.uploader, row.content))
        elif kept.verdict == "had" and chunk.seat_step in self.claimed:
            self.claimed.discard(chunk.seat_step)  # claimed by a writer that died, or is about to write the same
            return AppendResult("new")
        return kept
