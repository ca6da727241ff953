"""A ring of slots from who plays to who learns: written in place, read in place, and full means wait.

    actor ─ slot() … commit() ─► │ slot │ slot │ slot │ ─► slot() … release() ─ learner

Both sides count what they did in the shared memory itself; a slot belongs to the writer until it is committed and
to the reader until it is released, so a process that dies in the middle leaves nothing half-written to be read.
Several actors may share the columns of one ring, each in a lane with counts of its own.
"""

import time

from sparring.learn.actors.shared_arrays import Layout, SharedArrays, fence
from sparring.learn.actors.wakeup import Wakeup
from sparring.wire.chunk import Array

_LINE = 8  # int64s in a line of the cache: the counts of two processes never share one


class RingBuffer:
    """`slots` times the columns of `layout`, and for each lane how many slots were written and read."""

    def __init__(self, layout: Layout, slots: int, lanes: int = 1, descriptor: int | None = None) -> None:
        columns = {name: (dtype, (slots, *shape)) for name, (dtype, shape) in layout.items()}
        whole: Layout = {"_written": ("int64", (lanes, _LINE)), "_read": ("int64", (lanes, _LINE)), **columns}
        self.block = SharedArrays.create(whole) if descriptor is None else SharedArrays(descriptor, whole)
        self._written, self._read = (self.block.arrays.pop(name) for name in ("_written", "_read"))
        self._slots = slots

    def room(self, lane: int = 0) -> bool:
        """Whether the writer has a slot."""
        return int(self._written[lane, 0] - self._read[lane, 0]) < self._slots

    def ready(self, lane: int = 0) -> int:
        """How many slots wait for the reader."""
        return int(self._written[lane, 0] - self._read[lane, 0])

    def to_write(self, lane: int = 0) -> dict[str, Array]:
        """The columns of the slot to be written next, as they are in memory."""
        return self._slot(int(self._written[lane, 0]))

    def to_read(self, lane: int = 0) -> dict[str, Array]:
        """The columns of the oldest slot that waits; good until it is released."""
        fence()
        return self._slot(int(self._read[lane, 0]))

    def commit(self, lane: int = 0) -> None:
        """What was written may be read."""
        fence()
        self._written[lane, 0] += 1

    def release(self, lane: int = 0) -> None:
        """What was read may be written over."""
        fence()
        self._read[lane, 0] += 1

    def rewind(self, lane: int) -> None:
        """Forget what waits in a lane whose writer is dead; the next one begins where the others read."""
        self._written[lane, 0] = self._read[lane, 0]

    def wait_for_room(self, bell: Wakeup, timeout_s: float, lane: int = 0) -> bool:
        """Sleep until there is a slot to write; False if there is none in time, or nobody reads any more."""
        until = time.monotonic() + timeout_s
        while not self.room(lane):
            left = until - time.monotonic()
            if left <= 0 or bell.gone:
                return False
            bell.wait(left)
        return True

    def close(self) -> None:
        """Let go of the memory."""
        self.block.close()
        del self._written, self._read

    def _slot(self, count: int) -> dict[str, Array]:
        return {name: column[count % self._slots] for name, column in self.block.arrays.items()}
