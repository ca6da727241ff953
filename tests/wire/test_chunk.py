"""Chunks: golden bytes, round trips, and the sentence for each way in which bytes can be wrong."""

import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard

from sparring.errors import WireError
from sparring.wire.chunk import (
    MAX_ENCODED_BYTES,
    Chunk,
    Column,
    Header,
    decode,
    decode_parts,
    encode,
    encode_parts,
    pack,
    unpack,
)
from sparring.wire.ids import EpisodeId, GameId, PlayerId

GOLDEN = Path(__file__).parent / "golden" / "chunk.hex"


def header(**other: object) -> Header:
    said = {
        "game": GameId("cartpole"),
        "version": "1",
        "spec": "ab" * 32,
        "episode": EpisodeId("01890a5d-ac96-774b-bcce-b302099a8057"),
        "seat": 0,
        "first_step": 0,
        "steps": 3,
        "player": PlayerId("0f" * 16),
        "actor": "person",
        "source": "play",
        "seed": 7,
    }
    return Header(**(said | other))  # type: ignore[arg-type]


def chunk(**other: object) -> Chunk:
    return Chunk(
        header(**other),
        {
            "observation/state": np.arange(12, dtype=np.float32).reshape(3, 4) / 8,
            "action": np.array([0, 1, 1], np.int32),
            "reward": np.ones(3, np.float32),
            "tick": np.arange(3, dtype=np.int64),
        },
    )


def raw(head: Header, body: bytes) -> bytes:
    packed = msgspec.msgpack.encode(head)
    return struct.pack("<4sI", b"SPC\x01", len(packed)) + packed + body


def test_the_bytes_of_format_1_never_change() -> None:
    # The compressed body may differ between zstd releases, so the golden chunk is stored uncompressed.
    stored = bytes.fromhex(GOLDEN.read_text())
    found = decode(stored)
    assert found.content_hash() == chunk().content_hash()
    body = b"".join(
        np.ascontiguousarray(a).tobytes().ljust(-(-a.nbytes // 8) * 8, b"\0") for a in chunk().columns.values()
    )
    columns = tuple(Column(name, array.dtype.name, array.shape) for name, array in chunk().columns.items())
    assert raw(msgspec.structs.replace(chunk().header, codec="raw", columns=columns), body) == stored


def test_a_chunk_comes_back_as_it_went() -> None:
    found = decode(encode(chunk()))
    assert found.key == chunk().key
    for name, array in chunk().columns.items():
        assert found.columns[name].dtype == array.dtype
        np.testing.assert_array_equal(found.columns[name], array)


def test_decoded_arrays_are_read_only_aligned_views_of_one_buffer() -> None:
    columns = list(decode(encode(chunk())).columns.values())
    owners = set()
    for array in columns:
        assert not array.flags.writeable
        assert array.flags.aligned
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        owners.add(id(owner.base))
    assert len(owners) == 1


def test_content_is_equal_however_it_was_compressed_and_whoever_received_it() -> None:
    plain = decode(bytes.fromhex(GOLDEN.read_text()))
    received = Chunk(msgspec.structs.replace(chunk().header, uploader="key", received_at_ms=5), chunk().columns)
    assert plain.content_hash() == chunk().content_hash() == received.content_hash()
    assert chunk(seat=1).content_hash() != chunk().content_hash()


def test_header_and_body_can_be_kept_apart() -> None:
    head, body = encode_parts(decode(encode(chunk())))
    assert decode_parts(head, body).content_hash() == chunk().content_hash()


def test_several_chunks_travel_as_one_upload() -> None:
    parts = [encode(chunk()), encode(chunk(first_step=3))]
    assert [bytes(part) for part in unpack(pack(parts))] == parts


BODY = zstandard.compress(bytes(16))
TWO = (Column("action", "int32", (2,)), Column("reward", "float32", (2,)))
WRONG = {
    "empty": (b"", "chunk: 0 bytes are too few for a chunk. Send the chunk whole."),
    "magic": (b"PICKLE__", "chunk: it starts with 5049434b, not 53504301. Send chunks of format 1."),
    "header beyond the end": (
        struct.pack("<4sI", b"SPC\x01", 1 << 31),
        "chunk: the header claims 2147483648 bytes of 8. Keep it under 65536.",
    ),
    "no steps": (
        raw(header(steps=0, columns=TWO), BODY),
        "chunk: 0 steps, a chunk has 1 to 512. Cut the episode into chunks.",
    ),
    "no columns": (raw(header(), BODY), "chunk: 0 columns, a chunk has 1 to 64. Send the spec's columns."),
    "a dtype that is code": (
        raw(header(columns=(Column("action", "object", (2,)),)), BODY),
        "chunk: column 'action' has dtype 'object'. Use one of uint8, int8, int16, int32, int64, float32, float64.",
    ),
    "a shape that overflows": (
        raw(header(columns=(Column("action", "int64", (1 << 30, 1 << 30)),)), BODY),
        "chunk: the columns take 9223372036854775808 bytes, the limit is 67108864. Send shorter chunks.",
    ),
    "a frame that claims more than its columns": (
        raw(header(columns=TWO), zstandard.compress(bytes(1 << 20))),
        "chunk: its frame claims 1048576 bytes, its columns 16. Write the frame's size.",
    ),
    "two columns of one name": (
        raw(header(columns=(TWO[0], TWO[0])), BODY),
        "chunk: two columns of one name. Name each column once.",
    ),
    "too large": (
        bytes(MAX_ENCODED_BYTES + 1),
        "chunk: 786433 bytes, the limit is 786432. Send shorter chunks.",
    ),
    "not finite": (
        raw(header(columns=TWO, outcome=float("nan")), BODY),
        "chunk: sample_rate or outcome is not a finite number. Leave outcome out when there is none.",
    ),
    "a plain body of another size": (
        raw(header(columns=TWO, codec="raw"), bytes(15)),
        "chunk: the body has 15 bytes, its columns 16. Send the columns that the header names.",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_bytes_are_answered_with_a_sentence(case: str) -> None:
    data, sentence = WRONG[case]
    with pytest.raises(WireError) as error:
        decode(data)
    assert str(error.value) == sentence


def test_an_upload_that_is_cut_short_is_answered_with_a_sentence() -> None:
    whole = pack([encode(chunk())])
    for cut in (1, 3, 5, len(whole) - 1):
        with pytest.raises(WireError):
            unpack(whole[:cut])


def test_a_default_that_was_written_out_does_not_change_the_content_hash() -> None:
    assert chunk(sample_rate=float("1.0")).content_hash() == chunk().content_hash()
