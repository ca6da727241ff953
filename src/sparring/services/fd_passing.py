"""How two processes of one machine exchange their arenas: descriptors over a Unix socket, once for each pair."""

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparring.errors import WireError
from sparring.services.shared_memory import Arena, Mapped

PATIENCE_S = 1.0
NAME_BYTES = 8
_WORD = 8  # bytes of an arena's id


def socket_beside(address: str) -> Path:
    """Where arenas are exchanged: beside the socket of the calls."""
    return Path(address.removeprefix("ipc://")).with_suffix(".fd")


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side: its name among callers, and its arena."""

    name: bytes
    arena: int  # its id
    mapped: Mapped
    connection: socket.socket  # ends when the other side does

    def close(self) -> None:
        """Let go; where arrays are still in use, with the last of them."""
        self.mapped.close()


class ArenaExchange:
    """Where a service takes its callers' arenas, in a thread of its own. `came` is called for a caller before that
    caller can call; `gone` when it has ended, however it did."""

    def __init__(self, path: Path, arena: Arena, came: Callable[[Peer], None], gone: Callable[[Peer], None]) -> None:
        self._path, self._arena, self._came, self._gone = path, arena, came, gone
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(128)
        self._listening.setblocking(False)
        self._over, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._receive, name="arena-exchange", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let every caller go."""
        self._end.close()
        self._thread.join()
        self._over.close()
        self._listening.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _receive(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._over, selectors.EVENT_READ)
            waiting.register(self._listening, selectors.EVENT_READ)
            peers: set[Peer] = set()
            while True:
                for key, _ in waiting.select():
                    if key.fileobj is self._over:
                        for peer in peers:
                            peer.close()
                        return
                    if key.fileobj is self._listening:
                        if (came := self._admit()) is not None:
                            peers.add(came)
                            waiting.register(came.connection, selectors.EVENT_READ, came)
                        continue
                    waiting.unregister(key.fileobj)
                    peers.remove(key.data)
                    self._gone(key.data)
                    key.data.connection.close()

    def _admit(self) -> Peer | None:
        """One caller more; None where it went away again or spoke nonsense."""
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return None
        connection.settimeout(PATIENCE_S)
        handles: list[int] = []
        try:
            said, handles, _, _ = socket.recv_fds(connection, NAME_BYTES + _WORD, 1)
            if len(said) != NAME_BYTES + _WORD or len(handles) != 1:
                raise OSError("no greeting")
            mapped = Mapped(handles.pop(), connection)
            peer = Peer(said[:NAME_BYTES], int.from_bytes(said[NAME_BYTES:], "little"), mapped, connection)
        except (OSError, ValueError):
            connection.close()
            for handle in handles:
                os.close(handle)
            return None
        self._came(peer)
        with contextlib.suppress(OSError):  # it has ended already, which is noticed as any end is
            socket.send_fds(connection, [self._arena.id.to_bytes(_WORD, "little")], [self._arena.handle])
        return peer


def introduce(path: Path, arena: Arena, name: bytes, patience_s: float = PATIENCE_S) -> Peer:
    """Give the service at `path` our arena, and take its own. OSError where it is not there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(patience_s)
    try:
        connection.connect(str(path))
        socket.send_fds(connection, [name + arena.id.to_bytes(_WORD, "little")], [arena.handle])
        said, handles, _, _ = socket.recv_fds(connection, _WORD, 1)
        if len(said) != _WORD or len(handles) != 1:
            raise WireError("it gave no arena", where=str(path), do="Run the same release on both sides")
        return Peer(name, int.from_bytes(said, "little"), Mapped(handles[0], connection), connection)
    except BaseException:
        connection.close()
        raise
