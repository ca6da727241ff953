"""How two processes of one machine hand each other their arenas: descriptors over a Unix socket, once for each pair."""

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from sparring.errors import WireError
from sparring.services.arena import Arena, Mapped

PATIENCE_S = 1.0
_WORD = 8  # bytes of an arena's id, and of a caller's name


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side: its name among callers, and its arena."""

    name: bytes
    arena: int  # its id
    mapped: Mapped
    line: socket.socket  # ends when the other side does

    def close(self) -> None:
        self.line.close()


class Reception:
    """Where a service takes its callers' arenas."""

    def __init__(self, path: Path, arena: Arena) -> None:
        self._path, self._arena = path, arena
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(128)
        self._listening.setblocking(False)

    def fileno(self) -> int:
        return self._listening.fileno()

    def admit(self) -> Peer | None:
        """One caller more; None where it went away again or spoke nonsense."""
        try:
            line, _ = self._listening.accept()
        except BlockingIOError:
            return None
        line.settimeout(PATIENCE_S)
        handles: list[int] = []
        try:
            said, handles, _, _ = socket.recv_fds(line, 2 * _WORD, 1)
            if len(said) != 2 * _WORD or len(handles) != 1:
                raise OSError("no greeting")
            socket.send_fds(line, [self._arena.id.to_bytes(_WORD, "little")], [self._arena.handle])
            return Peer(said[:_WORD], int.from_bytes(said[_WORD:], "little"), Mapped(handles.pop()), line)
        except (OSError, ValueError):
            line.close()
            for handle in handles:
                os.close(handle)
            return None

    def close(self) -> None:
        self._listening.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


def introduce(path: Path, arena: Arena, name: bytes) -> Peer:
    """Give the service at `path` our arena, and take its own. OSError where it is not there."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(PATIENCE_S)
    try:
        line.connect(str(path))
        socket.send_fds(line, [name + arena.id.to_bytes(_WORD, "little")], [arena.handle])
        said, handles, _, _ = socket.recv_fds(line, _WORD, 1)
        if len(said) != _WORD or len(handles) != 1:
            raise WireError("it gave no arena", where=str(path), do="Run the same release on both sides")
    except BaseException:
        line.close()
        raise
    return Peer(name, int.from_bytes(said, "little"), Mapped(handles[0]), line)
