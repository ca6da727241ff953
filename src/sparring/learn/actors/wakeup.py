"""A wakeup between two processes: a byte on a socket wakes the other side; its end of file says that it is gone."""

import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

_BYTES = 4096


class Wakeup:
    """One side. The byte only ends a wait: what has changed is in shared memory."""

    def __init__(self, one: socket.socket) -> None:
        one.setblocking(False)
        self._socket = one
        self.gone = False  # the other side has ended
        self.first_heard_s: float | None = None  # when its first byte came

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
        """Wake the other side; where it has unread bytes it needs no more of them."""
        with suppress(BlockingIOError):
            try:
                self._socket.send(b"!")
            except (BrokenPipeError, ConnectionError):
                self.gone = True

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a byte comes, at most so long; False where none came."""
        return bool(wait_any((self,), timeout_s))

    def hear(self) -> None:
        """Read the bytes that came."""
        with suppress(BlockingIOError):
            try:
                while data := self._socket.recv(_BYTES):
                    if self.first_heard_s is None:
                        self.first_heard_s = time.monotonic()
                    if len(data) < _BYTES:
                        return
                self.gone = True
            except ConnectionError:
                self.gone = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def wait_any(wakeups: Sequence[Wakeup], timeout_s: float) -> list[Wakeup]:
    """Sleep until a byte comes on one of them or its other side is gone; those are read and returned."""
    there = [wakeup for wakeup in wakeups if not wakeup.gone]
    if not there:
        return []
    poll = select.poll()
    by_descriptor = {wakeup.fileno(): wakeup for wakeup in there}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    woken = [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)]
    for wakeup in woken:
        wakeup.hear()
    return woken
