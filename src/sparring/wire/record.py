"""The record: chunks of one episode as one piece of a stream.

    "SPR" + format byte | u32 little-endian header length | header, msgpack | chunks, each behind its u32 length

A chunk alone is read as a record, too: a writer that has none of this code may put one there.
"""

import struct
from dataclasses import dataclass

import msgspec

from sparring.errors import WireError
from sparring.wire.chunk import pack, unpack

MAX_RECORD_BYTES = 1 << 20  # Kinesis counts the partition key with it
MAX_HEADER_BYTES = 1 << 10
MAX_CHUNKS = 4_096
OVERHEAD_BYTES = 512  # an envelope with the longest header that is written; MAX_UPLOADER bounds it
MAX_UPLOADER = 256  # characters
PER_CHUNK_BYTES = 4

_MAGIC = b"SPR\x01"
_PREFIX = struct.Struct("<4sI")
_BARE = b"SPC"


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a gateway says of the chunks below; a game server that writes straight to the stream leaves it empty."""

    uploader: str = ""  # who brought the chunks to the gateway
    received_at_ms: int = 0  # when the last of them came there


@dataclass(frozen=True, slots=True)
class Record:
    """A header and encoded chunks, not yet decoded."""

    header: Header
    chunks: list[bytes]


_encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Header).decode


def encode(record: Record) -> bytes:
    """The record as bytes; WireError where it has no chunk or is too large for a stream."""
    if not 1 <= len(record.chunks) <= MAX_CHUNKS:
        raise _bad(f"{len(record.chunks)} chunks, a record has 1 to {MAX_CHUNKS}", "Spread them over records")
    if len(record.header.uploader) > MAX_UPLOADER:
        raise _bad(f"an uploader of {len(record.header.uploader)} characters", f"Keep it under {MAX_UPLOADER}")
    packed = _encode_header(record.header)
    data = b"".join((_PREFIX.pack(_MAGIC, len(packed)), packed, pack(record.chunks)))
    if len(data) > MAX_RECORD_BYTES:
        raise _bad(f"{len(data)} bytes, the limit is {MAX_RECORD_BYTES}", "Spread the chunks over records")
    return data


def decode(data: bytes | memoryview) -> Record:
    """The record in `data`, its chunks still encoded; or a WireError that says what is wrong with it."""
    view = memoryview(data)
    if len(view) > MAX_RECORD_BYTES:
        raise _bad(f"{len(view)} bytes, the limit is {MAX_RECORD_BYTES}", "Write smaller records")
    if view[:3] == _BARE:
        return Record(Header(), [bytes(view)])
    if len(view) < _PREFIX.size:
        raise _bad(f"{len(view)} bytes are too few for a record", "Write the record whole")
    magic, size = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise _bad(f"it starts with {bytes(magic).hex()}, not {_MAGIC.hex()}", "Write records of format 1")
    if size > MAX_HEADER_BYTES or size > len(view) - _PREFIX.size:
        raise _bad(f"the header claims {size} bytes of {len(view)}", f"Keep it under {MAX_HEADER_BYTES}")
    end = _PREFIX.size + size
    header = _read_header(view[_PREFIX.size : end])
    chunks = unpack(view[end:], MAX_CHUNKS)  # without a limit, empty ones would make a quarter of a million
    if not chunks:
        raise _bad(f"no chunk, a record has 1 to {MAX_CHUNKS}", "Write the chunks that it has")
    return Record(header, [bytes(chunk) for chunk in chunks])


def _read_header(view: memoryview) -> Header:
    try:
        header = _decode_header(view)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"the header does not read: {error}", "Write the fields that docs/stream.md lists") from None
    if len(header.uploader) > MAX_UPLOADER or not 0 <= header.received_at_ms < 1 << 53:
        wrong = f"received_at_ms {header.received_at_ms}, an uploader of {len(header.uploader)} characters"
        raise _bad(wrong, f"Keep the time in Unix milliseconds and the name under {MAX_UPLOADER}")
    return header


def _bad(wrong: str, do: str) -> WireError:
    return WireError(wrong, where="record", do=do)
