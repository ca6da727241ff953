"""Codecs of weights: what arrives, how small it is, that nothing is lost for ever, and what is not inflated."""

import contextlib

import numpy as np
import pytest
import zstandard

from sparring.errors import ConfigError, WireError
from sparring.nodes.codecs import CODECS, Codec, Layout, Sender

LAYOUT = Layout(
    (("trunk/0/weight", (64, 30)), ("trunk/0/bias", (64,)), ("logits/weight", (4, 64)), ("logits/bias", (4,)))
)
LOSS = {"f32": 0.0, "f16": 1e-3, "int8": 2e-2, "f32-delta": 1e-7, "f16-delta": 1e-4, "int8-delta": 1e-3, "topk": 0.1}


def pair(seed=0, change=0.01):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=LAYOUT.size).astype(np.float32)
    return base, base + (change * rng.normal(size=LAYOUT.size)).astype(np.float32)


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_gives_back_what_it_was_given_as_far_as_it_says(name):
    codec = Codec(name, LAYOUT)
    base, weights = pair()
    payload = codec.encode(weights, base)
    assert len(payload) <= codec.max_bytes
    assert np.abs(codec.decode(payload, base) - weights).max() <= LOSS[name]
    zeros = np.zeros_like(base)
    assert (codec.decode(codec.encode(zeros, zeros), zeros) == 0).all()


def test_smaller_codecs_are_smaller():
    base, weights = pair()
    sizes = {name: len(Codec(name, LAYOUT).encode(weights, base)) for name in CODECS}
    assert sizes["f32"] == LAYOUT.byte_length == 4 * LAYOUT.size
    assert sizes["f32"] > sizes["f32-delta"] > sizes["f16-delta"] > sizes["int8-delta"] > 8 * sizes["topk"] / 2
    assert sizes["topk"] * 8 < sizes["f32"]


@pytest.mark.parametrize("name", ["f16", "int8", "int8-delta", "topk(0.05)"])
def test_what_a_sender_did_not_send_is_sent_later(name):
    codec = Codec(name, LAYOUT)
    sender = Sender(codec)
    rng, base = np.random.default_rng(1), pair()[0]
    learned, arrived = np.zeros_like(base), np.zeros_like(base)
    for _ in range(20):
        update = (0.01 * rng.normal(size=base.size)).astype(np.float32)
        learned += update
        arrived += codec.decode(sender.encode(base + update, base), base) - base
    for _ in range(40):  # and now nothing new
        arrived += codec.decode(sender.encode(base, base), base) - base
    assert np.abs(arrived - learned).max() < max(2e-3, LOSS[codec.kind] if codec.kind == "int8" else 0)


def test_momentum_pushes_an_entry_until_it_is_sent_and_no_longer():
    layout = Layout((("w", (4,)),))
    sender, base = Sender(Codec("topk(0.25)", layout), momentum=0.5), np.zeros(4, np.float32)
    codec = sender.codec
    first = codec.decode(sender.encode(np.array([1, 0.5, 0, 0], np.float32), base), base)
    assert first.tolist() == [1, 0, 0, 0]
    second = codec.decode(sender.encode(base, base), base)
    assert second.tolist() == [0, 0.75, 0, 0]  # 0.5, and half of it again; the first entry's momentum is masked
    assert codec.decode(sender.encode(base, base), base).tolist() == [0, 0, 0, 0]


def test_a_node_that_follows_by_topk_reaches_the_parent():
    codec = Codec("topk(0.1)", LAYOUT)
    has, goal = pair(change=1.0)
    for _ in range(12):
        has = codec.decode(codec.encode(goal, has), has)
    assert np.abs(has - goal).max() < 2e-3


@pytest.mark.parametrize("name", CODECS)
def test_payloads_of_another_layout_and_cut_or_changed_ones_are_refused(name):
    codec, other = Codec(name, LAYOUT), Codec(name, Layout((("w", (3, 5)),)))
    base, weights = pair()
    payload = codec.encode(weights, base)
    for wrong in (payload[:-1], payload + b"x" * codec.max_bytes, b"", other.encode(weights[:15], base[:15])):
        with pytest.raises(WireError, match="weights"):
            codec.decode(wrong, base)
    rng = np.random.default_rng(0)
    for _ in range(300):
        mutated = bytearray(payload)
        mutated[rng.integers(len(mutated))] ^= int(rng.integers(1, 256))
        with contextlib.suppress(WireError):
            assert codec.decode(bytes(mutated), base).shape == base.shape


def test_a_compressed_bomb_is_refused_before_it_is_inflated():
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    assert len(bomb) < 20_000
    base = np.zeros(1 << 20, np.float32)
    codec = Codec("f32-delta", Layout((("w", base.shape),)))
    with pytest.raises(WireError, match="declares 268435456 bytes, the layout has 4194304"):
        codec.decode(bomb, base)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28))
    with pytest.raises(WireError, match="declares"):
        codec.decode(silent, base)


def test_places_beyond_the_layout_are_refused():
    codec = Codec("topk(0.5)", Layout((("w", (4,)),)))
    for gaps in ([3, 1], [1, 0], [0, 1 << 31]):
        raw = np.array(gaps, "<u4").view(np.uint8).reshape(-1, 4).T.tobytes() + bytes(4)
        with pytest.raises(WireError, match="place"):
            codec.decode(zstandard.ZstdCompressor().compress(raw), np.zeros(4, np.float32))


@pytest.mark.parametrize("text", ["f8", "topk(0)", "topk(2)", "f32(3)"])
def test_a_codec_that_does_not_read_is_refused_with_a_sentence(text):
    with pytest.raises(ConfigError, match=r"\[nodes\] codec"):
        Codec(text, LAYOUT)
