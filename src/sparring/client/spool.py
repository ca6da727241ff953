"""The spool: chunks on disk until the gateway has them.

One file for each seat of each episode, in a folder of this process's own that it holds locked. Chunks are
handed to the operating system at once (a killed game loses nothing that was spooled), and fsynced once they
have waited `SYNC_AFTER_S` and on close, so that what is sent at once costs no fsync and a power cut loses
about a second. Nothing on disk says what was sent: a file goes when all of it is settled, and after a kill
a partly sent one is sent again, which the gateway answers with "had".

In a file each chunk stands after a magic number, its length and a digest:

    "SPS" + format byte | u32 little-endian length | 16 bytes of BLAKE2b over length and chunk | chunk
"""

import hashlib
import heapq
import logging
import os
import secrets
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from sparring.client.file_lock import try_lock
from sparring.client.statistics import Counters
from sparring.errors import StoreFailed
from sparring.wire.chunk import MAX_ENCODED_BYTES
from sparring.wire.ids import EpisodeId

SYNC_AFTER_S = 1.0
MAGIC = b"SPS\x01"
_PREFIX = struct.Struct("<4sI16s")
_SUFFIX = ".chunks"
log = logging.getLogger("sparring.client")


@dataclass(frozen=True, slots=True)
class Entry:
    """One spooled chunk: in which file, at which offset, and its bytes."""

    name: str
    offset: int
    chunk: bytes = field(repr=False)


@dataclass(slots=True)
class _File:
    waiting: list[tuple[int, int]]  # (offset, bytes) of records not yet settled, in order
    size: int
    unsynced_since_s: float | None = None


class Spool:
    """Called by the background threads of one connection, which its lock keeps apart."""

    def __init__(self, folder: Path, limit_bytes: int, counters: Counters) -> None:
        self._home, self._limit, self._counters = folder, limit_bytes, counters
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._chunks = 0
        self._bytes = 0
        self._aside = 0
        self._dropped: set[EpisodeId] = set()  # still being recorded, and no longer spooled
        self._open: set[EpisodeId] = set()
        self._folder, self._held = _own_folder(folder)
        self.adopt()

    def add(self, episode: EpisodeId, seat: int, chunk: bytes) -> bool:
        """Spool the chunk; False where its episode was dropped for space. OSError leaves the spool as it was."""
        with self._lock:
            if episode in self._dropped:
                return False
            self._append_record(f"{episode}.{seat}{_SUFFIX}", write_record(chunk))
            self._open.add(episode)
            self._shrink()
            return episode not in self._dropped

    def batch(self, most_chunks: int, most_bytes: int) -> list[Entry]:
        """The oldest unsettled chunks, in each seat's order, verified; damaged ones are set aside on the way."""
        with self._lock:
            entries: list[Entry] = []
            size = 0
            for name in heapq.nsmallest(most_chunks, self._files):  # names begin with the time of opening
                file = self._files[name]
                for offset, length in tuple(file.waiting):
                    if entries and (len(entries) == most_chunks or size + length > most_bytes):
                        return entries
                    chunk = self._read(name, offset, length)
                    if chunk is not None:
                        entries.append(Entry(name, offset, chunk))
                        size += length
            return entries

    def settle(self, entry: Entry) -> None:
        """The gateway has it, or it was set aside: never send it again."""
        with self._lock:
            self._forget(entry.name, entry.offset)

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Move a chunk that will never be taken into `refused/`, with the reason beside it, and settle it."""
        with self._lock:
            self._keep_aside("refused", f"{entry.name}.{entry.offset}", entry.chunk, reason)
            self._forget(entry.name, entry.offset)

    def clear(self) -> int:
        """Remove everything, as an erased player is owed; how many chunks that were."""
        with self._lock:
            chunks = self._chunks
            for name in tuple(self._files):
                self._remove(name)
            for kind in ("refused", "damaged"):
                shutil.rmtree(self._home / kind, ignore_errors=True)
            return chunks

    def closed(self, episode: EpisodeId) -> None:
        """Nothing more will be recorded of the episode."""
        with self._lock:
            self._dropped.discard(episode)
            self._open.discard(episode)

    def sync(self, now_s: float, *, all_of_it: bool = False) -> None:
        """fsync what has waited long enough."""
        due = []
        with self._lock:
            for name, file in self._files.items():
                since_s = file.unsynced_since_s
                if since_s is not None and (all_of_it or now_s - since_s >= SYNC_AFTER_S):
                    due.append(name)
                    file.unsynced_since_s = None
        for name in due:  # outside the lock: an fsync takes milliseconds, and uploads go on meanwhile
            try:
                with (self._folder / name).open("r+b") as opened:
                    os.fsync(opened.fileno())
            except FileNotFoundError:
                continue  # sent and removed meanwhile

    @property
    def waiting(self) -> tuple[int, int]:
        """Chunks and bytes not yet settled."""
        with self._lock:
            return self._chunks, self._bytes

    def adopt(self) -> int:
        """Take over the files of processes of this player that died; how many there were."""
        adopted = 0
        for folder in sorted(self._home.iterdir()):
            if (
                folder == self._folder
                or not folder.name.startswith("at-")
                or (held := try_lock(folder / "lock")) is None
            ):
                continue
            with held, self._lock:
                for path in sorted(folder.glob(f"*{_SUFFIX}")):
                    self._take_over(path)
                    adopted += 1
            _remove_folder(folder)
        if adopted:
            log.info("took over %d spooled episodes of an earlier process", adopted)
        with self._lock:
            self._shrink()
        return adopted

    def close(self) -> None:
        """Sync what is left, release the lock, and remove the folder if it is empty."""
        self.sync(time.monotonic(), all_of_it=True)
        self._held.close()
        if not any(self._folder.glob(f"*{_SUFFIX}")):
            _remove_folder(self._folder)

    def _take_over(self, path: Path) -> None:
        data, whole = path.read_bytes(), []
        for offset, size, verifies in find_records(data):
            if verifies:
                whole.append((offset, size))
            else:
                self._damaged(path.name, offset, data[offset : offset + size])
        if path.name in self._files or not whole:
            # Two processes spooled one seat: what stands in the other file is appended here, record by record.
            for offset, size in whole:
                self._append_record(path.name, data[offset : offset + size])
            path.unlink()
            return
        os.replace(path, self._folder / path.name)
        end = sum(whole[-1])
        os.truncate(self._folder / path.name, end)
        self._files[path.name] = _File(whole, end, time.monotonic())
        self._count(len(whole), sum(size for _, size in whole))

    def _append_record(self, name: str, data: bytes) -> None:
        file = self._files.get(name, _File([], 0))
        _append(self._folder / name, data, file.size)
        file.waiting.append((file.size, len(data)))
        file.size += len(data)
        file.unsynced_since_s = file.unsynced_since_s or time.monotonic()
        self._files[name] = file
        self._count(1, len(data))

    def _read(self, name: str, offset: int, length: int) -> bytes | None:
        """The chunk in that record, or None once it is set aside as damaged."""
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except FileNotFoundError:
            data = b""
        chunk = read_record(data)
        if chunk is None:
            self._damaged(name, offset, data)
            self._forget(name, offset)
        return chunk

    def _damaged(self, name: str, offset: int, data: bytes) -> None:
        self._counters.add(damaged_chunks=1)
        reason = f"the {len(data)} bytes at {offset} of {name} do not verify"
        log.warning("spool: %s; set aside, not sent", reason)
        self._keep_aside("damaged", f"{name}.{offset}", data, reason)

    def _keep_aside(self, kind: str, name: str, data: bytes, reason: str) -> None:
        folder = self._home / kind
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / f"{name}.reason.txt").write_text(reason + "\n", encoding="utf-8")
        self._aside += 1
        if self._aside % 64 == 1:  # bounded too, but a look through the folder at each refusal would be slow
            _trim(folder, self._limit // 8)

    def _forget(self, name: str, offset: int) -> None:
        file = self._files.get(name)
        if file is None:
            return  # dropped for space while it was on its way
        for record in file.waiting:
            if record[0] == offset:
                file.waiting.remove(record)
                self._count(-1, -record[1])
                break
        if not file.waiting:
            self._remove(name)

    def _shrink(self) -> None:
        while self._bytes > self._limit and self._files:
            oldest = EpisodeId(min(self._files).split(".")[0])
            names = [name for name in self._files if name.startswith(oldest)]
            chunks = sum(len(self._files[name].waiting) for name in names)
            for name in names:
                self._remove(name)
            if oldest in self._open:
                self._dropped.add(oldest)
            self._counters.add(dropped_episodes=1, dropped_chunks=chunks)
            log.warning("spool is above %d bytes: dropped episode %s, %d chunks", self._limit, oldest, chunks)

    def _remove(self, name: str) -> None:
        file = self._files.pop(name)
        self._count(-len(file.waiting), -sum(size for _, size in file.waiting))
        (self._folder / name).unlink(missing_ok=True)

    def _count(self, chunks: int, size: int) -> None:
        self._chunks += chunks
        self._bytes += size


def write_record(chunk: bytes) -> bytes:
    """The chunk as it stands in a spool file."""
    return _PREFIX.pack(MAGIC, len(chunk), _digest(chunk)) + chunk


def read_record(data: bytes | memoryview) -> bytes | None:
    """The chunk of one whole record, or None where it does not verify."""
    view = memoryview(data)
    if len(view) < _PREFIX.size:
        return None
    magic, size, digest = _PREFIX.unpack_from(view)
    chunk = bytes(view[_PREFIX.size : _PREFIX.size + size])
    if magic != MAGIC or size > MAX_ENCODED_BYTES or len(chunk) != size or _digest(chunk) != digest:
        return None
    return chunk


def find_records(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """(offset, bytes, whether it verifies) of every record in a file and of every damaged range between them; without a
    last record that was being written when the process died."""
    at = 0
    while at < len(data):
        chunk = read_record(memoryview(data)[at:])
        if chunk is not None:
            end = at + _PREFIX.size + len(chunk)
        else:
            end = data.find(MAGIC, at + 1)
            while end >= 0 and read_record(memoryview(data)[end:]) is None:
                end = data.find(MAGIC, end + 1)
            if end < 0 and _cut_short(data, at):
                return
            end = len(data) if end < 0 else end
        yield at, end - at, chunk is not None
        at = end


def _cut_short(data: bytes, at: int) -> bool:
    """Whether what stands there is the beginning of a record and the file ends before its end."""
    rest = data[at : at + _PREFIX.size]
    if len(rest) < _PREFIX.size:
        return MAGIC.startswith(rest[:4]) if len(rest) < 4 else rest.startswith(MAGIC)
    magic, size, _ = _PREFIX.unpack(rest)
    return bool(magic == MAGIC and size <= MAX_ENCODED_BYTES and at + _PREFIX.size + size > len(data))


def _digest(chunk: bytes) -> bytes:
    return hashlib.blake2b(len(chunk).to_bytes(4, "little") + chunk, digest_size=16).digest()


def _append(path: Path, data: bytes, size: int) -> None:
    """Write `data` at `size`, the end of the file; a part that was written before an error is cut off again."""
    with path.open("r+b" if size else "wb") as file:
        try:
            file.seek(size)
            file.write(data)
            file.flush()
        except OSError:
            file.truncate(size)
            raise


def _trim(folder: Path, limit_bytes: int) -> None:
    """Remove the oldest files above `limit_bytes`: what was set aside is for a look, not for ever."""
    kept = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in folder.iterdir())
    total = sum(size for _, size, _ in kept)
    for _, size, path in kept:
        if total <= limit_bytes:
            return
        path.unlink()
        total -= size


def _own_folder(home: Path) -> tuple[Path, BinaryIO]:
    try:
        home.mkdir(parents=True, exist_ok=True)
        while True:
            folder = home / f"at-{time.time_ns():x}-{secrets.token_hex(4)}"
            folder.mkdir()
            if (held := try_lock(folder / "lock")) is not None:
                return folder, held  # otherwise another process took it for an orphan in that instant
    except OSError as error:
        wrong = f"no spool can be kept there: {error}"
        raise StoreFailed(wrong, where=str(home), do="Give connect(folder=…)") from error


def _remove_folder(folder: Path) -> None:
    try:
        (folder / "lock").unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        log.debug("%s stays for now: another process looks into it", folder)
