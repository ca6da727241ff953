"""How far the one-process sink has read, in a file of the data folder; and the lock that one sink at a time holds.

    {"format": 1, "shards": {ID: {"position": …, "ended": …, "until": …}}}

`until` is written before a batch is, and gone after it: a sink that was killed between the two reads that batch
again with the same end, so that what is named after the batch (figures, files of the lake) is overwritten, not doubled.
"""

import fcntl
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from sparring.durable import replace_file
from sparring.errors import StoreFailed
from sparring.stream.protocol import BEGINNING, Position
from sparring.stream.shards import ShardPosition

FORMAT = 1


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    position: str = BEGINNING
    ended: bool = False
    until: str | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    shards: dict[str, _Entry]


class SinkLock:
    """A context manager: one sink at a time reads a stream into a data folder, until it ends or dies."""

    def __init__(self, folder: Path, stream_url: str) -> None:
        self.folder, self.name = folder, _name(stream_url)

    def __enter__(self) -> Self:
        path = self.folder / f"{self.name}.lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreFailed(f"it cannot be opened: {error}", where=str(path), do="Make the folder writable") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            wrong = "another sink reads this stream into this data folder"
            raise StoreFailed(wrong, where=str(path), do="Stop that one first") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._lock)  # which lets go of it


class Checkpoint:
    """The file. Only the process that holds the lock writes it."""

    def __init__(self, lock: SinkLock) -> None:
        """Reads it; StoreFailed where it is there and does not read."""
        # The lock is on another file: this one is replaced by a new one with every batch.
        self.path = lock.folder / f"{lock.name}.json"
        self.positions: dict[str, ShardPosition] = {}
        self.begun: dict[str, Position] = {}  # shard → end of a batch that was begun and maybe not finished
        self._read()

    def begin(self, ends: Mapping[str, Position]) -> None:
        """Write down where the next batch of each shard will end; on disk on return."""
        self.begun = dict(ends)
        self._write()

    def finish(self, positions: Mapping[str, ShardPosition]) -> None:
        """Everything before `positions` is stored; on disk on return."""
        self.positions, self.begun = dict(positions), {}
        self._write()

    def _read(self) -> None:
        try:
            said = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            do = "Remove it: the stream is then read from its beginning, and nothing is stored twice"
            raise StoreFailed(f"it does not read: {error}", where=str(self.path), do=do) from None
        if said.format != FORMAT:
            do = "Use the Sparring that wrote it, or a newer one"
            raise StoreFailed(f"it has format {said.format}", where=str(self.path), do=do)
        self.positions = {
            name: ShardPosition(Position(entry.position), entry.ended) for name, entry in said.shards.items()
        }
        self.begun = {name: Position(one.until) for name, one in said.shards.items() if one.until is not None}

    def _write(self) -> None:
        names = self.positions.keys() | self.begun.keys()
        entries = {
            name: _Entry(at.position, at.ended, self.begun.get(name))
            for name in sorted(names)
            for at in [self.positions.get(name, ShardPosition())]
        }
        try:
            replace_file(self.path, msgspec.json.encode(_File(FORMAT, entries)))
        except OSError as error:
            raise StoreFailed(f"it cannot be written: {error}", where=str(self.path), do="Make room there") from None


def _name(url: str) -> str:
    """One name for one stream: options that do not say which stream it is may change."""
    parts, options = urlsplit(url), parse_qs(urlsplit(url).query)
    which = (parts.scheme, parts.netloc, parts.path, options.get("region"), options.get("endpoint"))
    plain = "".join(char if char.isalnum() or char in "-_" else "-" for char in parts.netloc)[:60]
    return f"{plain or 'stream'}-{hashlib.sha256(repr(which).encode()).hexdigest()[:8]}"
