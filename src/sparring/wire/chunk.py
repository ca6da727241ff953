"""The chunk: consecutive steps of one seat in one episode, as columns.

    "SPC" + format byte | u32 little-endian header length | header, msgpack | body

The body holds the columns' raw little-endian buffers in the header's order, each padded to 8
bytes, as one zstd frame (or plain, `codec = "raw"`). Offsets follow from the declared shapes, so
no offset can lie; the inflated size is known before inflating, so nothing can swell. Decoded
arrays are read-only views of that one buffer.
"""

import hashlib
import math
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from sparring.errors import WireError
from sparring.wire.ids import EpisodeId, GameId, PlayerId

Array = NDArray[Any]
Ending = Literal["running", "terminated", "truncated"]  # truncated: cut short, so bootstrap
Source = Literal["play", "selfplay", "collect", "node", "import"]
Codec = Literal["zstd", "raw"]

MAX_STEPS = 512
MAX_ENCODED_BYTES = 768 << 10
MAX_INFLATED_BYTES = 64 << 20
MAX_HEADER_BYTES = 64 << 10
MAX_COLUMNS = 64
MAX_DIMENSIONS = 6
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float32", "float64")

_MAGIC = b"SPC\x01"
_PREFIX = struct.Struct("<4sI")
_SOURCES = get_args(Source)


class Column(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Name, dtype and shape of one buffer in the body; a per-step column's first axis is the steps."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All of a chunk but its numbers. The gateway sets `uploader` and `received_at_ms`, and replaces `player`."""

    game: GameId
    version: str
    spec: str  # hash of the game's spec, 64 hex digits
    episode: EpisodeId
    seat: int
    first_step: int  # counts this seat's decisions
    steps: int
    player: PlayerId | None = None
    actor: str  # "person", "model:SHA-256" or "script:NAME"
    source: Source
    sample_rate: float = 1.0
    ending: Ending = "running"
    outcome: float | None = None  # this seat's score, on its last chunk
    seed: int | None = None
    lease: str | None = None
    uploader: str = ""
    received_at_ms: int = 0
    codec: Codec = "zstd"
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Key:
    """Where a chunk belongs; a store keeps one chunk under each key."""

    game: GameId
    episode: EpisodeId
    seat: int
    first_step: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A header and its columns. `body` is the encoded form of the columns where it is at hand."""

    header: Header
    columns: Mapping[str, Array]
    body: bytes = field(default=b"", repr=False, compare=False)

    @property
    def key(self) -> Key:
        head = self.header
        return Key(head.game, head.episode, head.seat, head.first_step)

    def content_hash(self) -> bytes:
        """16 bytes over everything the sender said; equal content is equal however it was compressed."""
        head = self.header
        said = msgspec.structs.replace(
            head,
            uploader="",
            received_at_ms=0,
            codec="raw",
            columns=layout(self),
            sample_rate=float(head.sample_rate),  # an int here would come back from the wire as a float
            outcome=None if head.outcome is None else float(head.outcome),
        )
        # Every field in its place: which defaults a header leaves out depends on how it was made.
        packed = _encode_header(msgspec.structs.astuple(said))
        # In one piece: hashlib lets go of the interpreter lock for each, and getting it back under load takes longer.
        whole = b"".join((packed, *(np.ascontiguousarray(array).data for array in self.columns.values())))
        return hashlib.blake2b(whole, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Encoded:
    """A chunk whose header was read and whose body was not inflated yet."""

    header: Header
    body: memoryview = field(repr=False)
    inflated_bytes: int  # that its columns take


class _Contexts(threading.local):
    """zstd's working memory, made once per thread: making it costs as much as inflating a small chunk."""

    def __init__(self) -> None:
        # The window is bounded: a small frame may otherwise ask for gigabytes of it.
        self.inflater = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        self.deflater = zstandard.ZstdCompressor(level=1)


_mine = _Contexts()
_encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Header).decode


def encode(chunk: Chunk) -> bytes:
    """The chunk as bytes. A body that is already encoded is used as it is."""
    body = chunk.body
    head = chunk.header
    if not body:
        head = msgspec.structs.replace(head, codec="zstd", columns=layout(chunk))
        body = _compress(chunk.columns)
    packed = _encode_header(head)
    return b"".join((_PREFIX.pack(_MAGIC, len(packed)), packed, body))


def decode(data: bytes | memoryview, max_inflated_bytes: int = MAX_INFLATED_BYTES) -> Chunk:
    """The chunk in `data`, or a WireError that says what is wrong with it."""
    return inflate(read_header(data, max_inflated_bytes))


def read_header(data: bytes | memoryview, max_inflated_bytes: int = MAX_INFLATED_BYTES) -> Encoded:
    """The chunk with its body as it came: its header says how much memory it takes to `inflate` it."""
    view = memoryview(data)
    if len(view) > MAX_ENCODED_BYTES:
        raise _bad(f"{len(view)} bytes, the limit is {MAX_ENCODED_BYTES}", "Send shorter chunks")
    header, start = _read_header(view)
    total = sum(_padded(buffer_bytes(column)) for column in header.columns)
    if total > max_inflated_bytes:
        raise _bad(f"the columns take {total} bytes, the limit is {max_inflated_bytes}", "Send shorter chunks")
    return Encoded(header, view[start:], total)


def inflate(encoded: Encoded) -> Chunk:
    """The whole chunk, or a WireError. No more than `inflated_bytes` are inflated."""
    header, body, total = encoded.header, bytes(encoded.body), encoded.inflated_bytes
    raw = _inflate(body, total) if header.codec == "zstd" else body
    if len(raw) != total:
        raise _bad(f"the body has {len(raw)} bytes, its columns {total}", "Send the columns that the header names")
    columns, offset = {}, 0
    for column in header.columns:
        count = math.prod(column.shape)
        columns[column.name] = np.frombuffer(raw, column.dtype, count, offset).reshape(column.shape)
        offset += _padded(columns[column.name].nbytes)
    return Chunk(header, columns, body)


def decode_parts(header: bytes, body: bytes) -> Chunk:
    """The chunk whose header and body were kept apart, as a store keeps them."""
    return decode(b"".join((_PREFIX.pack(_MAGIC, len(header)), header, body)))


def encode_parts(chunk: Chunk) -> tuple[bytes, bytes]:
    """Header and body apart, so that a store can rewrite the one and never touch the other."""
    body = chunk.body or _compress(chunk.columns)
    codec: Codec = chunk.header.codec if chunk.body else "zstd"
    return _encode_header(msgspec.structs.replace(chunk.header, codec=codec, columns=layout(chunk))), body


def encoded_bytes(chunk: Chunk) -> int:
    """The size of a chunk whose body is at hand, as a store keeps it."""
    return len(_encode_header(chunk.header)) + len(chunk.body)


def pack(encoded: list[bytes]) -> bytes:
    """Several encoded chunks as the body of one upload: each behind its u32 length."""
    return b"".join(part for chunk in encoded for part in (struct.pack("<I", len(chunk)), chunk))


def unpack(data: bytes | memoryview, most_chunks: int = 1 << 20) -> list[memoryview]:
    """The encoded chunks of one upload, not yet decoded; WireError where there are more than `most_chunks`."""
    view = memoryview(data)
    parts: list[memoryview] = []
    while len(view):
        if len(parts) == most_chunks:
            raise _bad(f"more than {most_chunks} chunks", "Send fewer at once")
        if len(view) < 4:
            raise _bad(f"{len(view)} bytes after the last chunk", "Write each chunk's length, then the chunk")
        (size,) = struct.unpack_from("<I", view)
        if size > len(view) - 4:
            raise _bad(f"a chunk of {size} bytes was announced, {len(view) - 4} follow", "Send the upload whole")
        parts.append(view[4 : 4 + size])
        view = view[4 + size :]
    return parts


def _read_header(view: memoryview) -> tuple[Header, int]:
    if len(view) < _PREFIX.size:
        raise _bad(f"{len(view)} bytes are too few for a chunk", "Send the chunk whole")
    magic, size = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise _bad(f"it starts with {bytes(magic).hex()}, not {_MAGIC.hex()}", "Send chunks of format 1")
    if size > MAX_HEADER_BYTES or size > len(view) - _PREFIX.size:
        raise _bad(f"the header claims {size} bytes of {len(view)}", f"Keep it under {MAX_HEADER_BYTES}")
    end = _PREFIX.size + size
    try:
        header = _decode_header(view[_PREFIX.size : end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"the header does not read: {error}", "Write the fields that docs/wire.md lists") from None
    _check_counts(header)
    return header, end


def _check_counts(header: Header) -> None:
    if not 1 <= header.steps <= MAX_STEPS:
        raise _bad(f"{header.steps} steps, a chunk has 1 to {MAX_STEPS}", "Cut the episode into chunks")
    if header.first_step < 0 or header.seat < 0 or header.first_step >= 1 << 53:
        raise _bad(f"first_step {header.first_step}, seat {header.seat}", "Both count from 0")
    if not 1 <= len(header.columns) <= MAX_COLUMNS:
        raise _bad(f"{len(header.columns)} columns, a chunk has 1 to {MAX_COLUMNS}", "Send the spec's columns")
    if len({column.name for column in header.columns}) != len(header.columns):
        raise _bad("two columns of one name", "Name each column once")
    if not all(map(math.isfinite, (header.sample_rate, header.outcome or 0.0))):
        raise _bad("sample_rate or outcome is not a finite number", "Leave outcome out when there is none")


def buffer_bytes(column: Column) -> int:
    """What it takes in memory; WireError where there can be no such column."""
    if column.dtype not in DTYPES:
        raise _bad(f"column {column.name!r} has dtype {column.dtype!r}", f"Use one of {', '.join(DTYPES)}")
    if len(column.shape) > MAX_DIMENSIONS or any(not 0 <= size < 1 << 31 for size in column.shape):
        raise _bad(f"column {column.name!r} has shape {column.shape}", f"Use at most {MAX_DIMENSIONS} dimensions")
    return math.prod(column.shape) * np.dtype(column.dtype).itemsize


def _inflate(body: bytes, total: int) -> bytes:
    try:
        claimed = zstandard.get_frame_parameters(body)
        if claimed.content_size != total:
            raise _bad(f"its frame claims {claimed.content_size} bytes, its columns {total}", "Write the frame's size")
        return _mine.inflater.decompress(body, max_output_size=total)
    except zstandard.ZstdError as error:
        raise _bad(f"the body does not inflate: {error}", "Send one zstd frame") from None


def _compress(columns: Mapping[str, Array]) -> bytes:
    parts = []
    for array in columns.values():
        raw = np.ascontiguousarray(array).tobytes()
        parts += [raw, b"\0" * (_padded(len(raw)) - len(raw))]
    return _mine.deflater.compress(b"".join(parts))


def layout(chunk: Chunk) -> tuple[Column, ...]:
    """The name, dtype and shape of each of its columns."""
    if chunk.body and chunk.header.columns:  # it was decoded, and says so itself
        return chunk.header.columns
    return tuple(Column(name, array.dtype.name, array.shape) for name, array in chunk.columns.items())


def _padded(size: int) -> int:
    return size + -size % 8


def _bad(wrong: str, do: str) -> WireError:
    return WireError(wrong, where="chunk", do=do)
