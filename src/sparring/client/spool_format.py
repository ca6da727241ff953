"""How chunks lie in a spool file: each behind a mark, its length and a digest.

    "SPR" + format byte | u32 little-endian length | 16 bytes of BLAKE2b over length and chunk | chunk

No I/O. A record that does not verify is passed over and reported; the next mark that verifies goes on.
"""

import hashlib
import struct
from dataclasses import dataclass

from sparring.wire.chunk import MAX_ENCODED_BYTES

MARK = b"SPR\x01"
_PREFIX = struct.Struct("<4sI16s")


@dataclass(frozen=True, slots=True)
class Found:
    """Where the whole records of a file lie, and which stretches are none."""

    records: tuple[tuple[int, int], ...]  # (offset of the record, its bytes)
    damaged: tuple[tuple[int, int], ...]  # (offset, bytes) between or after whole records
    torn_bytes: int  # of a last record that was being written when the process died


def record(chunk: bytes) -> bytes:
    """The chunk as it stands in a spool file."""
    return _PREFIX.pack(MARK, len(chunk), _digest(chunk)) + chunk


def content(data: bytes | memoryview) -> bytes | None:
    """The chunk of one whole record, or None where it does not verify."""
    view = memoryview(data)
    if len(view) < _PREFIX.size:
        return None
    mark, size, digest = _PREFIX.unpack_from(view)
    chunk = bytes(view[_PREFIX.size : _PREFIX.size + size])
    if mark != MARK or size > MAX_ENCODED_BYTES or len(chunk) != size or _digest(chunk) != digest:
        return None
    return chunk


def find(data: bytes) -> Found:
    """The records of a whole file."""
    records: list[tuple[int, int]] = []
    damaged: list[tuple[int, int]] = []
    at = 0
    while at < len(data):
        chunk = content(memoryview(data)[at:])
        if chunk is not None:
            size = _PREFIX.size + len(chunk)
            records.append((at, size))
            at += size
            continue
        following = _next(data, at + 1)
        if following < 0:
            if _cut_short(data, at):
                return Found(tuple(records), tuple(damaged), len(data) - at)
            following = len(data)
        damaged.append((at, following - at))
        at = following
    return Found(tuple(records), tuple(damaged), 0)


def _next(data: bytes, start: int) -> int:
    """The offset of the next record that verifies, or -1."""
    at = data.find(MARK, start)
    while at >= 0 and content(memoryview(data)[at:]) is None:
        at = data.find(MARK, at + 1)
    return at


def _cut_short(data: bytes, at: int) -> bool:
    """Whether what stands there is the beginning of a record and the file ends before its end."""
    rest = data[at : at + _PREFIX.size]
    if len(rest) < _PREFIX.size:
        return MARK.startswith(rest[:4]) if len(rest) < 4 else rest.startswith(MARK)
    mark, size, _ = _PREFIX.unpack(rest)
    return bool(mark == MARK and size <= MAX_ENCODED_BYTES and at + _PREFIX.size + size > len(data))


def _digest(chunk: bytes) -> bytes:
    return hashlib.blake2b(len(chunk).to_bytes(4, "little") + chunk, digest_size=16).digest()
