"""Large arrays between two processes of one machine: through shared memory, the frame says only where they lie.

A sender has an arena, an unnamed file in memory cut into blocks of 64 kB. Its descriptor is handed to the other side
once, over a Unix socket, so that nothing has a name that could stay behind. An array takes as many blocks as it needs,
one after another. They belong to the receiver until the last array that looks at them is gone; then the flag of the
first falls, and the sender may fill them again. Where too few are free the array travels in a frame like any small one,
so that no sender ever waits for memory.

    [4096 flags][4096 blocks of 64 kB]

A service listens for its callers' arenas beside its socket for calls (ArenaExchange); a caller introduces itself there
once (introduce).
"""

import fcntl
import math
import mmap
import os
import selectors
import socket
import tempfile
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparring.errors import WireError
from sparring.wire.chunk import Array

LARGE_BYTES = 64 << 10  # arrays below this are cheaper in a frame; also the size of a block
BLOCKS = 4096
ARENA_BYTES = LARGE_BYTES * BLOCKS  # of address space; memory is taken as it is used
PATIENCE_S = 1.0  # with a process that is to give its arena
NAME_BYTES = 8  # of a caller
_WORD = 8  # bytes of an arena's id
_SWEPT = 8  # of the longest lent arrays, looked at before each new one


class Arena:
    """The sender's side. Threads may share one."""

    def __init__(self) -> None:
        self.id = int.from_bytes(os.urandom(7), "little")
        self.handle = unnamed_memory(LARGE_BYTES + ARENA_BYTES)
        self._memory = mmap.mmap(self.handle, LARGE_BYTES + ARENA_BYTES)
        self._used = bytearray(BLOCKS)
        self._lent: deque[tuple[int, int, bytes]] = deque()  # first block, how many, to whom; the longest lent first
        self._lock = threading.Lock()

    def put(self, flat: Array, to: bytes) -> int | None:
        """Copy a contiguous array into blocks for `to`; the number of the first, None where too few are free."""
        count = -(-flat.nbytes // LARGE_BYTES)
        with self._lock:
            number = -1
            if self.handle >= 0:
                self._sweep(_SWEPT)
                number = self._used.find(bytes(count))
                if number < 0:
                    self._sweep(len(self._lent))
                    number = self._used.find(bytes(count))
            if number < 0:
                return None
            self._used[number : number + count] = b"\1" * count
            self._memory[number] = 1
            self._lent.append((number, count, to))
            place = np.frombuffer(self._memory, np.uint8, flat.nbytes, LARGE_BYTES * (number + 1))
        np.copyto(place, flat.reshape(-1).view(np.uint8))
        return number

    def forget(self, to: bytes) -> None:
        """The process that held blocks is dead: they are free, and their memory is given back to the system."""
        with self._lock:
            if self.handle >= 0:
                for number, _, holder in self._lent:
                    if holder == to:
                        self._memory[number] = 0
                self._sweep(len(self._lent), give_back=True)

    def held_bytes(self) -> int:
        """What receivers look at now."""
        with self._lock:
            return sum(LARGE_BYTES * count for number, count, _ in self._lent if self._memory[number])

    def close(self) -> None:
        """Give the memory back; a receiver that looks at blocks keeps them until it no longer does."""
        with self._lock:
            if self.handle >= 0:
                os.close(self.handle)
                self.handle = -1
                self._memory = mmap.mmap(-1, BLOCKS)  # a mapping has a handle

    def _sweep(self, most: int, *, give_back: bool = False) -> None:
        """Take back blocks whose flag has fallen, among so many of the longest lent."""
        for _ in range(min(most, len(self._lent))):
            lent = number, count, _ = self._lent.popleft()
            if self._memory[number]:
                self._lent.append(lent)
                continue
            self._used[number : number + count] = bytes(count)
            if give_back and hasattr(mmap, "MADV_REMOVE"):
                self._memory.madvise(mmap.MADV_REMOVE, LARGE_BYTES * (number + 1), LARGE_BYTES * count)


class Mapped:
    """The receiver's side of an arena. `connection` tells the sender that we live: it stays open while there are
    arrays, since with its end all blocks are free."""

    def __init__(self, handle: int, connection: socket.socket, id: int) -> None:
        try:
            _require_seal(handle)
            self._memory = mmap.mmap(handle, LARGE_BYTES + ARENA_BYTES)
        finally:
            os.close(handle)
        self._connection, self.id, self._closing = connection, id, False
        self._held: dict[int, weakref.ref[Any]] = {}

    def take(self, number: int, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
        """The array there, read-only, without a copy; its blocks are given back when the last view of it is gone."""
        count, offset = math.prod(shape), LARGE_BYTES * (number + 1)
        is_inside = 0 <= number < BLOCKS and offset + count * dtype.itemsize <= len(self._memory)
        if not is_inside or min(shape, default=1) < 1:
            raise WireError("an array lies outside its arena", where="message", do="Speak the same release")
        whole = np.frombuffer(self._memory, dtype, count, offset)
        whole.flags.writeable = False
        self._held[number] = weakref.ref(whole, partial(self._give_back, number))
        return whole.reshape(shape)

    def close(self) -> None:
        """Take nothing more; the connection ends with the last array that is still there."""
        self._closing = True
        if not self._held:
            self._connection.close()
        else:
            _lingering.add(self)

    def _give_back(self, number: int, _: object) -> None:
        self._memory[number] = 0
        self._held.pop(number, None)
        if self._closing and not self._held:
            self._connection.close()
            _lingering.discard(self)


_lingering: set[Mapped] = set()  # closed, and still with arrays: this keeps their connections


def unnamed_memory(size: int) -> int:
    """A descriptor of memory that has no name, and ends with the processes that hold it; its size cannot be
    changed where the system can promise that."""
    if not hasattr(os, "memfd_create"):
        handle, path = tempfile.mkstemp()
        os.unlink(path)
        os.ftruncate(handle, size)
        return handle
    handle = os.memfd_create("sparring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, size)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return handle


def _require_seal(handle: int) -> None:
    """Memory that its owner could shrink would end its reader with a bus error. OSError where it could."""
    if hasattr(os, "memfd_create") and not fcntl.fcntl(handle, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise OSError("its size is not sealed")
    if os.fstat(handle).st_size != LARGE_BYTES + ARENA_BYTES:
        raise OSError("it is no arena")


class DescriptorServer:
    """Hands out descriptors to processes that connect to a Unix socket, in a thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._connections = path, set[socket.socket]()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(128)
        self._woken, self._wake = socket.socketpair()
        for one in (self._listening, self._woken, self._wake):
            one.setblocking(False)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=path.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look at what has changed."""
        with suppress(BlockingIOError):  # then it was woken often enough
            self._wake.send(b"!")

    def close(self) -> None:
        """Give nothing to any process any more."""
        self._stopping = True
        self.wake()
        self._thread.join()
        for one in (self._listening, self._woken, self._wake):
            one.close()
        for connection in self._connections:
            self._end(connection)
        self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._listening, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while not self._stopping:
                for key, _ in ready.select():
                    if key.fileobj is self._woken:
                        self._woken.recv(4096)
                    elif key.fileobj is self._listening:
                        with suppress(OSError):  # it went away again
                            connection, _ = self._listening.accept()
                            if self._admits(connection):
                                self._connections.add(connection)
                                ready.register(connection, selectors.EVENT_READ, connection)
                    elif not self._hears(key.data):
                        ready.unregister(key.data)
                        self._connections.remove(key.data)
                        key.data.close()
                self._answer()

    def _admits(self, connection: socket.socket) -> bool:
        """Whether a process that has connected may stay."""
        return True

    def _hears(self, connection: socket.socket) -> bool:
        """Read what came; whether the process may stay."""
        raise NotImplementedError

    def _answer(self) -> None:
        """Send what can be sent, after something was read or changed."""

    def _end(self, connection: socket.socket) -> None:
        connection.close()


class ArenaExchange(DescriptorServer):
    """Where a service takes its callers' arenas. A caller's is in `arenas` before that caller can call, and until it
    has ended, however it did."""

    def __init__(self, path: Path, arena: Arena) -> None:
        self._arena = arena
        self.arenas: dict[bytes, Mapped] = {}  # by the caller's name
        self._callers: dict[socket.socket, tuple[bytes, Mapped]] = {}
        super().__init__(path)

    def _admits(self, connection: socket.socket) -> bool:
        connection.settimeout(PATIENCE_S)
        handles: list[int] = []
        try:
            said, handles, _, _ = socket.recv_fds(connection, NAME_BYTES + _WORD, 1)
            if len(said) != NAME_BYTES + _WORD or len(handles) != 1:
                raise OSError("no greeting")
            mapped = Mapped(handles.pop(), connection, int.from_bytes(said[NAME_BYTES:], "little"))
        except (OSError, ValueError):
            connection.close()
            for handle in handles:
                os.close(handle)
            return False
        self.arenas[said[:NAME_BYTES]] = mapped
        self._callers[connection] = said[:NAME_BYTES], mapped
        with suppress(OSError):  # it has ended already, which is noticed as any end is
            socket.send_fds(connection, [self._arena.id.to_bytes(_WORD, "little")], [self._arena.handle])
        return True

    def _hears(self, connection: socket.socket) -> bool:
        name, mapped = self._callers.pop(connection)
        if self.arenas.get(name) is mapped:  # else it has introduced itself again
            del self.arenas[name]
            self._arena.forget(name)
        return False

    def _end(self, connection: socket.socket) -> None:
        self._callers[connection][1].close()


def socket_beside(address: str) -> Path:
    """Where arenas are exchanged: beside the socket of the calls."""
    return Path(address.removeprefix("ipc://")).with_suffix(".fd")


def introduce(path: Path, arena: Arena, name: bytes, patience_s: float = PATIENCE_S) -> Mapped:
    """Give the service at `path` our arena, and take its own. OSError where it is not there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(patience_s)
    try:
        connection.connect(str(path))
        socket.send_fds(connection, [name + arena.id.to_bytes(_WORD, "little")], [arena.handle])
        said, handles, _, _ = socket.recv_fds(connection, _WORD, 1)
        if len(said) != _WORD or len(handles) != 1:
            raise WireError("it gave no arena", where=str(path), do="Run the same release on both sides")
        return Mapped(handles[0], connection, int.from_bytes(said, "little"))
    except BaseException:
        connection.close()
        raise
