"""A bell between two processes: a byte on a socket wakes the other side, its end of file says that it is gone."""

import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

_BYTES = 4096


class Wakeup:
    """One side. What is meant by a ring lies in shared memory; the byte only ends a wait."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self.gone = False  # the other side has ended
        self.first_heard_s: float | None = None  # when it rang for the first time

    @classmethod
    def pair(cls) -> tuple["Wakeup", socket.socket]:
        """Our side, and the socket that the other process inherits; close that one once it has."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    @classmethod
    def inherited(cls, descriptor: int) -> "Wakeup":
        """The other side, in the process that inherited it."""
        return cls(socket.socket(fileno=descriptor))

    def ring(self) -> None:
        """Wake the other side; one that has not heard the last rings yet needs no more of them."""
        with suppress(BlockingIOError):
            try:
                self._line.send(b"!")
            except (BrokenPipeError, ConnectionError):
                self.gone = True

    def wait(self, timeout_s: float) -> bool:
        """Sleep until it was rung since the last time, at most so long; False where it was not."""
        return bool(wait_any((self,), timeout_s))

    def hear(self) -> None:
        """Take in what was rung."""
        with suppress(BlockingIOError):
            try:
                while data := self._line.recv(_BYTES):
                    if self.first_heard_s is None:
                        self.first_heard_s = time.monotonic()
                    if len(data) < _BYTES:
                        return
                self.gone = True
            except ConnectionError:
                self.gone = True

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()


def wait_any(bells: Sequence[Wakeup], timeout_s: float) -> list[Wakeup]:
    """Sleep until one of the bells was rung or has nobody behind it any more; those are heard and given."""
    there = [bell for bell in bells if not bell.gone]
    if not there:
        return []
    poll = select.poll()
    by_descriptor = {bell.fileno(): bell for bell in there}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    rung = [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)]
    for bell in rung:
        bell.hear()
    return rung
