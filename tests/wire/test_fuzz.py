"""Mutated bytes end in a typed error or a sound chunk: never a crash, a hang or unbounded memory.

20,000 inputs by default; `make fuzz` runs a million. The seed is fixed, so a failure can be repeated.
"""

import os
import random
import time
import tracemalloc

import msgspec
import zstandard

from sparring.errors import WireError
from sparring.wire import messages
from sparring.wire.chunk import MAX_INFLATED_BYTES, decode, encode, unpack
from wire.test_chunk import chunk, raw

INPUTS = int(os.environ.get("FUZZ_INPUTS", "20000"))
LIMIT_S = 1.0  # one input; what takes longer is a hang
EDGES = (b"\0", b"\xff", b"\x7f", b"\x80", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8, b"\x93" * 60)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four edits: flipped bits, cut, doubled or inserted runs, edge values."""
    buffer = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(buffer) + 1)
        match rng.randrange(6):
            case 0 if buffer:
                buffer[at % len(buffer)] ^= 1 << rng.randrange(8)
            case 1:
                del buffer[at:]
            case 2:
                buffer[at:at] = rng.choice(EDGES)
            case 3:
                del buffer[at : at + rng.randint(1, 16)]
            case 4:
                buffer[at:at] = buffer[at : at + rng.randint(1, 64)]
            case _:
                buffer[at : at + 4] = rng.randbytes(4)
    return bytes(buffer)


def inner_mutation(rng: random.Random) -> bytes:
    """A chunk whose frame is sound and whose header or numbers were edited, so that the edit gets past zstd."""
    whole = chunk()
    head = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.structs.replace(whole.header, columns=())))
    head["columns"] = [[name, a.dtype.name, list(a.shape)] for name, a in whole.columns.items()]
    key = rng.choice([*head, "columns"])
    junk = rng.choice([None, -1, 1 << 63, "x" * 70000, [], {}, float("inf"), b"\xff", True, [["a", "int8", [1 << 31]]]])
    if key == "columns" and rng.random() < 0.7:
        rng.choice(head["columns"])[rng.randrange(3)] = rng.choice([junk, "float64", [3, 0], [0], [2**31 - 1, 3]])
    else:
        head[key] = junk
    packed = msgspec.msgpack.encode(head)
    body = zstandard.compress(rng.randbytes(rng.choice([0, 8, 96, 4096])))
    return b"SPC\x01" + len(packed).to_bytes(4, "little") + packed + body


def test_mutated_chunks_end_in_a_typed_error_or_a_sound_chunk() -> None:
    rng = random.Random(20260)
    seeds = [encode(chunk()), encode(chunk(ending="terminated", outcome=1.0)), raw(chunk().header, b"")]
    refused = slowest_s = 0.0
    tracemalloc.start()
    try:
        for index in range(INPUTS):
            data = inner_mutation(rng) if index % 3 == 0 else mutate(rng.choice(seeds), rng)
            begun = time.perf_counter()
            try:
                found = decode(data)
                assert all(len(array) for array in found.columns.values() if array.shape[:1] == (found.header.steps,))
            except WireError as error:
                refused += 1
                assert error.do
            slowest_s = max(slowest_s, time.perf_counter() - begun)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert slowest_s < LIMIT_S, f"one input took {slowest_s:.2f} s"
    assert peak_bytes < 2 * MAX_INFLATED_BYTES
    assert refused > INPUTS / 2, "the mutations no longer break anything: the test lost its teeth"


def test_mutated_uploads_and_messages_end_in_a_typed_error_or_a_message() -> None:
    rng = random.Random(20261)
    observe = messages.Observe(chunk().header.episode, 0, {"observation/state": [0.5] * 4}, 3, 1.0, [True, False])
    frames = [messages.encode(observe, text=False), messages.encode(messages.Hello(1), text=False)]
    texts = [messages.encode(observe, text=True), '{"type":"hello","protocol":1}', "[" * 5000]
    for _ in range(INPUTS // 4):
        for data in (mutate(bytes(rng.choice(frames)), rng), mutate(str(rng.choice(texts)).encode(), rng)):
            for read in (messages.decode, lambda raw: messages.decode(raw.decode("utf-8", "replace")), unpack):
                try:
                    read(data)
                except WireError as error:
                    assert error.do
