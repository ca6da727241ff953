"""Trees of arrays as bytes: how learners, tables and actors go into a checkpoint and back. Never a pickle.

A tree is a dict with text keys, a list, an array, bytes, text, a number, a bool or None. Arrays come back
with the same dtype, shape and bits, as read-only views of the bytes; a numpy Generator travels as its state.
"""

import json
from typing import Any

import msgspec
import numpy as np

from sparring.errors import WireError
from sparring.wire.chunk import Array

Tree = Any  # dict[str, Tree] | list[Tree] | Array | bytes | str | int | float | bool | None

_ARRAY = 1


def pack(tree: Tree) -> bytes:
    """The tree as bytes; equal trees give equal bytes."""
    return _encoder.encode(tree)


def unpack(data: bytes) -> Tree:
    """The tree in `data`; WireError where it is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise WireError(f"it does not read: {error}", where="saved state", do="Use an older checkpoint") from None


def rng_state(rng: np.random.Generator) -> str:
    """Where a generator stands; JSON, since its integers are wider than msgpack's."""
    return json.dumps(rng.bit_generator.state, sort_keys=True)


def set_rng_state(rng: np.random.Generator, state: str) -> None:
    """Put a generator back to where it stood."""
    rng.bit_generator.state = json.loads(state)


def _extend(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        raise TypeError(f"{type(value).__name__} has no place in a tree")
    head = msgspec.msgpack.encode((value.dtype.str, value.shape))
    return msgspec.msgpack.Ext(_ARRAY, len(head).to_bytes(4, "little") + head + np.ascontiguousarray(value).tobytes())


def _restore(code: int, data: memoryview) -> Array:
    if code != _ARRAY:
        raise ValueError(f"extension {code} is unknown")
    start = 4 + int.from_bytes(data[:4], "little")
    dtype, shape = msgspec.msgpack.decode(data[4:start], type=tuple[str, tuple[int, ...]])
    return np.frombuffer(data[start:], dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_extend, order="deterministic")
_decoder = msgspec.msgpack.Decoder(ext_hook=_restore)
