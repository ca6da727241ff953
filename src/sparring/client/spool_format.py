"""How chunks lie in a spool file: each after a magic number, its length and a digest.

    "SPS" + format byte | u32 little-endian length | 16 bytes of BLAKE2b over length and chunk | chunk

No I/O. A record that does not verify is skipped and reported; reading goes on at the next one that verifies.
"""

import hashlib
import struct
from dataclasses import dataclass

from sparring.wire.chunk import MAX_ENCODED_BYTES

MAGIC = b"SPS\x01"
_PREFIX = struct.Struct("<4sI16s")


@dataclass(frozen=True, slots=True)
class Found:
    """Where the whole records of a file lie, and which ranges hold none."""

    records: tuple[tuple[int, int], ...]  # (offset of the record, its bytes)
    damaged: tuple[tuple[int, int], ...]  # (offset, bytes) between or after whole records
    torn_bytes: int  # of a last record that was being written when the process died


def record(chunk: bytes) -> bytes:
    """The chunk as it stands in a spool file."""
    return _PREFIX.pack(MAGIC, len(chunk), _digest(chunk)) + chunk


def content(data: bytes | memoryview) -> bytes | None:
    """The chunk of one whole record, or None where it does not verify."""
    view = memoryview(data)
    if len(view) < _PREFIX.size:
        return None
    magic, size, digest = _PREFIX.unpack_from(view)
    chunk = bytes(view[_PREFIX.size : _PREFIX.size + size])
    if magic != MAGIC or size > MAX_ENCODED_BYTES or len(chunk) != size or _digest(chunk) != digest:
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
    at = data.find(MAGIC, start)
    while at >= 0 and content(memoryview(data)[at:]) is None:
        at = data.find(MAGIC, at + 1)
    return at


def _cut_short(data: bytes, at: int) -> bool:
    """Whether what stands there is the beginning of a record and the file ends before its end."""
    rest = data[at : at + _PREFIX.size]
    if len(rest) < _PREFIX.size:
        return MAGIC.startswith(rest[:4]) if len(rest) < 4 else rest.startswith(MAGIC)
    magic, size, _ = _PREFIX.unpack(rest)
    return bool(magic == MAGIC and size <= MAX_ENCODED_BYTES and at + _PREFIX.size + size > len(data))


def _digest(chunk: bytes) -> bytes:
    return hashlib.blake2b(len(chunk).to_bytes(4, "little") + chunk, digest_size=16).digest()
