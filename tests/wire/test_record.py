"""Records of a stream round-trip, stay within their limits, and mutated ones end in a typed error."""

import random
import struct

import msgspec
import pytest

from sparring.errors import WireError
from sparring.wire import record
from sparring.wire.chunk import encode as encode_chunk
from sparring.wire.record import MAX_CHUNKS, MAX_RECORD_BYTES, Header, Record, decode, encode
from wire.test_chunk import chunk
from wire.test_fuzz import mutate

MUTATIONS = 10_000


def test_what_is_encoded_is_decoded():
    chunks = [encode_chunk(chunk()), encode_chunk(chunk(ending="terminated", outcome=1.0))]
    for header in (Header(), Header(uploader="key:ab12", received_at_ms=1_700_000_000_123)):
        found = decode(encode(Record(header, chunks)))
        assert found == Record(header, chunks)


def test_a_chunk_alone_is_a_record_of_nobody_in_particular():
    alone = encode_chunk(chunk())
    assert decode(alone) == Record(Header(), [alone])


def test_a_record_fits_into_a_stream_or_is_refused():
    most = MAX_RECORD_BYTES - 8 - len(msgspec.msgpack.encode(Header())) - 4
    assert len(encode(Record(Header(), [b"x" * most]))) == MAX_RECORD_BYTES
    with pytest.raises(WireError, match=f"{MAX_RECORD_BYTES + 1} bytes, the limit is {MAX_RECORD_BYTES}"):
        encode(Record(Header(), [b"x" * (most + 1)]))
    with pytest.raises(WireError, match="bytes, the limit is"):
        decode(b"SPR\x01" + b"\0" * MAX_RECORD_BYTES)
    with pytest.raises(WireError, match="0 chunks, a record has 1 to"):
        encode(Record(Header(), []))
    with pytest.raises(WireError, match="an uploader of 257 characters"):
        encode(Record(Header(uploader="x" * 257), [b"x"]))


def test_the_longest_header_stays_within_what_is_set_aside_for_it():
    widest = Header(uploader="x" * record.MAX_UPLOADER, received_at_ms=(1 << 53) - 1)
    assert len(encode(Record(widest, [b""]))) <= record.OVERHEAD_BYTES + record.PER_CHUNK_BYTES


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes are too few"),
        (b"SPR\x02" + b"\0" * 8, "starts with 53505202"),
        (b"SPR\x01\xff\xff\xff\xff\x80", "the header claims"),
        (b"SPR\x01\x01\0\0\0\xc1", "the header does not read"),
        (b"SPR\x01\x01\0\0\0\x80", "no chunk, a record has"),
        (b"SPR\x01\x01\0\0\0\x80" + struct.pack("<I", 9), "announced"),
        (b"SPR\x01\x01\0\0\0\x80" + b"\0\0\0\0" * (MAX_CHUNKS + 1), f"more than {MAX_CHUNKS} chunks"),
        (b"SPR\x01\x11\0\0\0" + msgspec.msgpack.encode({"received_at_ms": -1}), "received_at_ms -1"),
        (b"SPR\x01\x06\0\0\0" + msgspec.msgpack.encode({"who": 1}), "does not read"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(data, said):
    with pytest.raises(WireError, match=said) as told:
        decode(data)
    assert told.value.do


def test_mutated_records_end_in_a_typed_error_or_a_sound_record():
    rng = random.Random(20262)
    alone = encode_chunk(chunk())
    seeds = [
        encode(Record(Header(), [alone])),
        encode(Record(Header(uploader="key:ab12", received_at_ms=1_700_000_000_123), [alone, alone[:100], b""])),
        encode(Record(Header(uploader="x" * 200), [b"abc"] * 50)),
    ]
    refused = 0
    for _ in range(MUTATIONS):
        data = mutate(rng.choice(seeds), rng)
        try:
            found = decode(data)
        except WireError as error:
            refused += 1
            assert error.do
        else:
            assert 1 <= len(found.chunks) <= MAX_CHUNKS
            assert sum(map(len, found.chunks)) <= len(data)
    assert refused > MUTATIONS / 2, "the mutations no longer break anything: the test lost its teeth"
