"""Weights as bytes between a parent and its nodes. Both sides know `base`, the weights that the parent sent last.

    f32, f16, int8              the weights themselves; int8 has one scale for each row of a parameter
    f32-delta, f16-…, int8-…    what changed since `base`, its bytes grouped by significance, and zstd
    topk(share)                 the largest changes alone, as places and float16, and zstd

    encode(weights, base) ─► bytes ─► decode(bytes, base) ─► what the other side has from now on

What a codec loses is not lost for ever. Towards a node the next change is measured from what the node has, so it is
sent later. Towards the parent the sender keeps what it did not send and adds it to its next update (Sender: error
feedback), as Deep Gradient Compression (Lin et al. 2018), with its momentum and masking where `momentum` is not 0.

Decoding is bounded: a payload's inflated length follows from the layout, and a zstd frame that declares another is
refused before it is inflated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import zstandard

from sparring.errors import ConfigError, WireError
from sparring.nodes.merge_rules import named
from sparring.wire.chunk import Array

Shape = tuple[int, ...]
CODECS: Mapping[str, tuple[float, ...]] = {
    **{f"{kind}{delta}": () for kind in ("f32", "f16", "int8") for delta in ("", "-delta")},
    "topk": (0.05,),
}
MAX_WINDOW_BYTES = 1 << 27  # of a zstd frame, which may otherwise ask for gigabytes
LARGEST_F16 = 65_504.0


@dataclass(frozen=True, slots=True)
class Layout:
    """The parameters of a network by name, in the order in which they lie in one float32 vector."""

    shapes: tuple[tuple[str, Shape], ...]

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes)

    @property
    def byte_length(self) -> int:
        """Of the weights as float32."""
        return 4 * self.size

    def row_lengths(self) -> Array:
        """How many entries each row has: a matrix has a row for each unit, anything with one axis is one row."""
        rows: list[int] = []
        for _, shape in self.shapes:
            count = shape[0] if len(shape) > 1 else 1
            rows += [math.prod(shape) // max(1, count)] * count
        return np.array(rows, np.int64)

    def flat(self, weights: Mapping[str, Array]) -> Array:
        """Weights by name as one vector, copied."""
        return np.concatenate([np.asarray(weights[name], np.float32).reshape(-1) for name, _ in self.shapes])

    def by_name(self, vector: Array) -> dict[str, Array]:
        """A vector as weights by name, not copied."""
        ends = np.cumsum([math.prod(shape) for _, shape in self.shapes])[:-1]
        parts = zip(self.shapes, np.split(vector, ends), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}


class Codec:
    """One codec for one layout. It has no state, so one is enough for both directions."""

    def __init__(self, text: str, layout: Layout) -> None:
        self.kind, numbers = named(text, CODECS, "[nodes] codec")
        if numbers and not 0 < numbers[0] <= 1:
            raise ConfigError(f"{text!r}", where="[nodes] codec", do="Give a share above 0, and 1 at most")
        self.name = f"{self.kind}({numbers[0]:g})" if numbers else self.kind
        self.size, self._lengths = layout.size, layout.row_lengths()
        self._rows = np.repeat(np.arange(len(self._lengths)), self._lengths)
        self._starts = np.concatenate(([0], np.cumsum(self._lengths)[:-1]))
        self._kept = max(1, round(numbers[0] * self.size)) if numbers else 0
        self._whole, _, delta = self.kind.partition("-")
        self._packs = bool(delta) or self._kept > 0  # zstd around it, and changes inside

    @property
    def max_bytes(self) -> int:
        """No payload is larger: zstd adds a little to what it cannot compress."""
        return self._raw_bytes(self._kept) + 1_024 + self.size // 64

    def encode(self, weights: Array, base: Array) -> bytes:
        """The weights for a side that has `base`."""
        values = weights - base if self._packs else weights
        if self._kept:
            return _packed(_sparse(values, self._kept))
        raw = self._quantised(values)
        return _packed(raw) if self._packs else raw

    def decode(self, payload: bytes, base: Array) -> Array:
        """What `encode` was given, as far as it was sent, or a WireError."""
        if len(payload) > self.max_bytes:
            raise _bad(f"{len(payload)} bytes, the limit is {self.max_bytes}")
        raw = _unpacked(payload, self._raw_bytes(self._kept)) if self._packs else payload
        if len(raw) != self._raw_bytes(self._kept):
            raise _bad(f"{len(raw)} bytes, the layout has {self._raw_bytes(self._kept)}")
        with np.errstate(all="ignore"):  # what is not finite is the merger's to refuse
            values = self._dense(raw) if self._kept else self._values(raw)
            return base + values if self._packs else values

    def _raw_bytes(self, kept: int) -> int:
        if kept:
            return 6 * kept
        sizes = {"f32": 4 * self.size, "f16": 2 * self.size, "int8": self.size + 4 * len(self._lengths)}
        return sizes[self._whole]

    def _quantised(self, values: Array) -> bytes:
        if self._whole == "f32":
            return _grouped(values.astype("<f4")) if self._packs else values.astype("<f4").tobytes()
        if self._whole == "f16":
            half = np.clip(values, -LARGEST_F16, LARGEST_F16).astype("<f2")
            return _grouped(half) if self._packs else half.tobytes()
        scales = (np.maximum.reduceat(np.abs(values), self._starts) / 127).astype("<f4")
        steps = values / np.where(scales > 0, scales, 1)[self._rows]
        return scales.tobytes() + np.clip(np.rint(steps), -127, 127).astype(np.int8).tobytes()

    def _values(self, raw: bytes) -> Array:
        if self._whole == "int8":
            scales = np.frombuffer(raw, "<f4", len(self._lengths))
            steps = np.frombuffer(raw, np.int8, offset=scales.nbytes).astype(np.float32)
            return np.asarray(steps * scales[self._rows], np.float32)
        kind = "<f4" if self._whole == "f32" else "<f2"
        data = _ungrouped(raw, np.dtype(kind).itemsize) if self._packs else raw
        return np.frombuffer(data, kind).astype(np.float32)

    def _dense(self, raw: bytes) -> Array:
        gaps = np.frombuffer(_ungrouped(raw[: 4 * self._kept], 4), "<u4")
        places = np.cumsum(gaps, dtype=np.uint64)
        if places[-1] >= self.size or (gaps[1:] == 0).any():
            raise _bad(f"a place beyond {self.size} entries, or twice the same")
        dense = np.zeros(self.size, np.float32)
        dense[places.astype(np.int64)] = np.frombuffer(_ungrouped(raw[4 * self._kept :], 2), "<f2")
        return dense


@dataclass(slots=True)
class Sender:
    """A node's updates on their way to the parent: what a codec does not send is sent later."""

    codec: Codec
    momentum: float = 0.0
    _unsent: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    _velocity: Array = field(default_factory=lambda: np.zeros(0, np.float32))

    def encode(self, weights: Array, base: Array) -> bytes:
        """The update weights - base, and what was not sent before, for a parent that knows `base`."""
        if not self._unsent.size:
            self._unsent, self._velocity = np.zeros_like(base), np.zeros_like(base)
        self._velocity = np.float32(self.momentum) * self._velocity + (weights - base)
        self._unsent = self._unsent + self._velocity
        payload = self.codec.encode(base + self._unsent, base)
        sent = self.codec.decode(payload, base) - base
        self._unsent = self._unsent - sent
        self._velocity[sent != 0] = 0.0  # the masking of momentum: what was sent does not push again
        return payload

    def forget(self) -> None:
        """What was not sent yet is too old."""
        self._unsent = np.zeros(0, np.float32)


def _sparse(values: Array, kept: int) -> bytes:
    """Gaps between the places of the largest values, then the values."""
    sizes = np.abs(values)
    places = np.sort(np.argpartition(sizes, len(sizes) - kept)[len(sizes) - kept :])
    gaps = np.diff(places, prepend=0).astype("<u4")
    half = np.clip(values[places], -LARGEST_F16, LARGEST_F16).astype("<f2")
    return _grouped(gaps) + _grouped(half)


def _grouped(values: Array) -> bytes:
    """The first byte of every value, then the second of every value …: alike bytes lie together for zstd."""
    return values.view(np.uint8).reshape(-1, values.itemsize).T.tobytes()


def _ungrouped(data: bytes, itemsize: int) -> bytes:
    return np.frombuffer(data, np.uint8).reshape(itemsize, -1).T.tobytes()


def _packed(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(raw)


def _unpacked(payload: bytes, expected_bytes: int) -> bytes:
    """The frame's content, of exactly that length; one that declares another is not inflated."""
    try:
        declared = zstandard.get_frame_parameters(payload).content_size
        if declared != expected_bytes:
            raise _bad(f"it declares {declared} bytes, the layout has {expected_bytes}")
        return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompress(payload, expected_bytes)
    except zstandard.ZstdError as error:
        raise _bad(f"it does not inflate: {error}") from None


def _bad(wrong: str) -> WireError:
    return WireError(wrong, where="weights", do="Use the same codec and layout on both sides")
