"""Trees of arrays as bytes: how learners, tables and actors go into a checkpoint and back. Never a pickle.

A tree is a dict with text keys, a list, an array, bytes, text, a number, a bool or None. Arrays come back
with the same dtype, shape and bits, as read-only views of the bytes; a numpy Generator travels as its state.

An object with `__array__`, `dtype` and `shape` is an array that is made when it is needed, such as a replay table's
snapshot. `pack_parts` does not read them, so that it returns at once; the thread that writes the checkpoint does:

    length of the head (8 bytes) | head: the tree, with a place for each part | parts, one behind the other
"""

import json
import math
from typing import Any

import msgspec
import numpy as np

from sparring.errors import WireError
from sparring.wire.chunk import Array

Tree = Any  # dict[str, Tree] | list[Tree] | Array | bytes | str | int | float | bool | None

_ARRAY, _PART = 1, 2
LARGE_BYTES = 1 << 16  # arrays and bytes from this size on are parts of their own


def pack(tree: Tree) -> bytes:
    """The tree as bytes; equal trees give equal bytes."""
    return _encoder.encode(tree)


def unpack(data: bytes) -> Tree:
    """The tree in `data`; WireError where it is none."""
    return _decoded(_decoder, data)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Tree:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise WireError(f"it does not read: {error}", where="saved state", do="Use an older checkpoint") from None


def pack_parts(tree: Tree) -> list[Any]:
    """The tree as bytes, in parts: bytes, arrays, and arrays that are made later (see above). Arrays are copied unless
    they are `frozen`, so the tree's own may change afterwards."""
    parts: list[Any] = []
    offset = 0

    def outside(node: Tree) -> Tree:
        nonlocal offset
        if isinstance(node, dict):
            return {name: outside(value) for name, value in node.items()}
        if isinstance(node, list | tuple):
            return [outside(value) for value in node]
        size = node.nbytes if isinstance(node, np.ndarray) else len(node) if isinstance(node, bytes) else 0
        if size < LARGE_BYTES and not _made_later(node):
            return node
        kind, shape = ("", (len(node),)) if isinstance(node, bytes) else (node.dtype.str, node.shape)
        place = msgspec.msgpack.encode((kind, shape, offset))
        changes = isinstance(node, np.ndarray) and (node.flags.writeable or not node.flags.owndata)
        parts.append(node.copy() if changes else node)
        offset += math.prod(shape) * np.dtype(kind or np.uint8).itemsize
        return msgspec.msgpack.Ext(_PART, place)

    head = pack(outside(tree))
    return [len(head).to_bytes(8, "little"), head, *parts]


def frozen(array: Array) -> Array:
    """The array, which must be a copy of its own, as one that never changes."""
    array.flags.writeable = False
    return array


def part_bytes(part: Any) -> memoryview:
    """A part as it is written; one that is made later is made now."""
    made: Any = part if isinstance(part, bytes) else np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return memoryview(made)


def unpack_parts(data: bytes) -> Tree:
    """The tree whose parts are `data`, joined; WireError where it is none."""
    start = 8 + int.from_bytes(data[:8], "little")

    def restore(code: int, place: memoryview) -> Any:
        if code != _PART:
            return _restore(code, place)
        kind, shape, offset = msgspec.msgpack.decode(place, type=tuple[str, tuple[int, ...], int])
        found = np.frombuffer(data, kind or np.uint8, math.prod(shape), start + offset)
        return found.reshape(shape) if kind else found.tobytes()

    return _decoded(msgspec.msgpack.Decoder(ext_hook=restore), data[8:start])


def rng_state(rng: np.random.Generator) -> str:
    """Where a generator stands; JSON, since its integers are wider than msgpack's."""
    return json.dumps(rng.bit_generator.state, sort_keys=True)


def set_rng_state(rng: np.random.Generator, state: str) -> None:
    """Put a generator back to where it stood."""
    rng.bit_generator.state = json.loads(state)


def _made_later(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)


def _extend(value: Any) -> msgspec.msgpack.Ext:
    if _made_later(value):
        value = np.asarray(value)
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
