"""An inlet of a table: steps of one process, one by one or as columns, through shared memory into another's table.

    writer ─ insert(), extend() ─► │ step │ step │ … │ ─► drain() ─ table

For players with a loop of their own; the crew's actors hand over blocks instead. One process writes, one reads. Each
counts what it did in the shared memory, so one that dies in the middle leaves nothing half-written to be read.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from sparring.games.protocol import RUNNING, TERMINATED
from sparring.games.spec import SeatSpec
from sparring.learn.actors.shared_arrays import Layout, SharedArrays, fence
from sparring.replay.steps import Steps
from sparring.replay.table import Table

_AFTER = "after/"  # what was seen after a step at which an episode was cut
_LINE = 8  # int64s in a line of the cache


class Inlet:
    """`rows` steps that may wait. `streams` of the writer are the table's from `first_stream` on."""

    def __init__(self, seat: SeatSpec, rows: int, *, first_stream: int = 0, descriptor: int | None = None) -> None:
        columns: dict[str, tuple[str, tuple[int, ...]]] = {
            "stream": ("int64", (rows,)),
            "reward": ("float32", (rows,)),
            "ending": ("uint8", (rows,)),
            "action": (seat.action.dtype, (rows, *seat.action.shape)),
        }
        for leaf in seat.observation:
            columns[leaf.name] = columns[_AFTER + leaf.name] = (leaf.dtype, (rows, *leaf.shape))
        layout: Layout = {"_written": ("int64", (_LINE,)), "_read": ("int64", (_LINE,)), **columns}
        self.block = SharedArrays.create(layout) if descriptor is None else SharedArrays(descriptor, layout)
        self._written, self._read = self.block.arrays["_written"], self.block.arrays["_read"]
        self._columns = self.block.arrays
        self._seen = [leaf.name for leaf in seat.observation]
        self._rows, self._first_stream = rows, first_stream
        self._count = int(self._written[0])  # of the writer
        self._limit = 0  # what it may write up to before it must look again

    def insert(
        self,
        observation: Mapping[str, ArrayLike],
        action: ArrayLike,
        reward: float,
        *,
        ending: int = RUNNING,
        stream: int = 0,
        after: Mapping[str, ArrayLike] | None = None,
    ) -> bool:
        """Hand one step over; False where there is no room now. `after` is what was seen where an episode was cut."""
        if self.room() < 1:
            return False
        columns, place = self._columns, self._count % self._rows
        for name in self._seen:
            columns[name][place] = observation[name]
        if after is not None:
            for name in self._seen:
                columns[_AFTER + name][place] = after[name]
        columns["action"][place], columns["reward"][place] = action, reward
        columns["ending"][place], columns["stream"][place] = ending, stream
        self._commit(1)
        return True

    def extend(self, steps: Steps) -> int:
        """Hand over as many of the steps, from the first on, as there is room for; how many that was."""
        if self._limit - self._count < len(steps):
            self._limit = 0  # so that the room is looked at anew
        count = min(len(steps), self.room())
        done = 0
        while done < count:
            place = self._count % self._rows
            size = min(count - done, self._rows - place)
            here, there = slice(done, done + size), slice(place, place + size)
            for name in ("stream", "reward", "ending", "action"):
                self._columns[name][there] = getattr(steps, name)[here]
            for name in self._seen:
                self._columns[name][there] = steps.observation[name][here]
            cut = (steps.final >= here.start) & (steps.final < here.stop)
            for name, column in steps.final_observation.items():
                self._columns[_AFTER + name][place + steps.final[cut] - done] = column[cut]
            self._commit(size)
            done += size
        return done

    def drain(self, table: Table, most: int = 4_096) -> int:
        """Insert up to `most` of the steps that wait, in their order; how many that was."""
        first = int(self._read[0])
        place = first % self._rows
        size = min(int(self._written[0]) - first, most, self._rows - place, table.capacity // 2)
        if size < 1:
            return 0
        fence()
        part, columns = slice(place, place + size), self._columns
        ending = columns["ending"][part]
        final = np.flatnonzero((ending != RUNNING) & (ending != TERMINATED))
        table.insert(
            Steps(
                stream=columns["stream"][part] + self._first_stream,
                observation={name: columns[name][part] for name in self._seen},
                action=columns["action"][part],
                reward=columns["reward"][part],
                ending=ending,
                legal=None,
                behaviour_logp=None,
                value=None,
                final=final,
                final_observation={name: columns[_AFTER + name][part][final] for name in self._seen},
            ),
        )
        fence()
        self._read[0] = first + size
        return size

    def waiting(self) -> int:
        """Steps handed over and not yet taken."""
        return int(self._written[0] - self._read[0])

    def close(self) -> None:
        """Let go of the memory."""
        self.block.close()
        self._columns = {}
        del self._written, self._read

    def room(self) -> int:
        """Steps that the writer may surely hand over now."""
        if self._count >= self._limit:  # only then is the other side's count asked for
            self._limit = int(self._read[0]) + self._rows
        return self._limit - self._count

    def _commit(self, count: int) -> None:
        fence()
        self._count += count
        self._written[0] = self._count
