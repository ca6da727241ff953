"""A call and its answer as frames: a small typed head, then each array as its own raw buffer.

    [head]  msgpack of Head: version, kind, id, verb, seconds left, body
    [array] as it lies in memory, one frame for each array of the body, in order

An array of 64 kB or more that lies in shared memory (arena.py) has no frame: its place says where.

The body is plain data (dicts with text keys, lists, tuples as lists, numbers, text, bytes, None) in which an array
stands as its dtype, shape and number. Nothing is pickled; what is too large, too many or of another version is refused.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from sparring.errors import WireError
from sparring.services.arena import LARGE_BYTES, Arena, Mapped
from sparring.wire.chunk import DTYPES

VERSION = 1
CALL, TASK, ANSWER, ACCEPTED, ERROR = range(5)  # kinds of message
MAX_HEAD_BYTES = 4 << 20
MAX_ARRAYS = 4096
MAX_BYTES = 1 << 30  # of one message's arrays
_ARRAY, _SHARED, KEPT = 1, 2, 3
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in DTYPES}
# What else may stand in a body, by its code: objects with __place__() → (code, bytes), read by these (see kept.py).
EXTENSIONS: dict[int, Callable[[memoryview], Any]] = {}


class Head(msgspec.Struct, array_like=True):
    """What a message is, beside its arrays."""

    version: int
    kind: int
    id: int
    verb: str  # of an answer: ""
    seconds: float  # that the caller still waits; of an answer: how long it took
    body: Any


class _Place(msgspec.Struct, array_like=True):
    """An array of the body."""

    dtype: str
    shape: tuple[int, ...]
    number: int


class _Held(msgspec.Struct, array_like=True):
    """An array of the body in shared memory."""

    dtype: str
    shape: tuple[int, ...]
    arena: int
    number: int
    offset: int


class Codec:
    """Messages to frames and back. One for each thread: it holds the arrays of the message at hand."""

    def __init__(self) -> None:
        self._buffers: list[Any] = []
        self._arena: Arena | None = None
        self._to = b""
        self._mapped: Mapping[int, Mapped] = {}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._put)
        self._decoder = msgspec.msgpack.Decoder(Head, ext_hook=self._take)

    def encode(self, head: Head, arena: Arena | None = None, to: bytes = b"") -> list[Any]:
        """The frames of a message; arrays are not copied where their memory is in order, except large ones into
        `arena`, where there is one, for `to`."""
        self._arena, self._to = arena, to
        frames: list[Any] = []
        self._buffers = frames
        try:
            first = self._encoder.encode(head)
        except (TypeError, ValueError, OverflowError) as error:
            raise WireError(str(error), where="call", do="Send plain data and arrays") from None
        finally:
            self._arena = None
        return [first, *frames]

    def decode(self, frames: Sequence[Any], mapped: Mapping[int, Mapped] | None = None) -> Head:
        """The message in frames (bytes or buffers); its arrays are views of them, or of `mapped` arenas by their
        ids. WireError where it is none."""
        self._mapped = mapped or {}
        if len(frames[0]) > MAX_HEAD_BYTES or len(frames) > MAX_ARRAYS + 1:
            raise _broken(f"{len(frames[0])} bytes of head and {len(frames) - 1} arrays")
        self._buffers = list(frames[1:])
        try:
            head = self._decoder.decode(frames[0])
        except (msgspec.DecodeError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise _broken(str(error)) from None
        finally:
            self._buffers, self._mapped = [], {}
        if head.version != VERSION:
            raise WireError(
                f"it speaks version {head.version}, and {VERSION} is spoken here",
                where="message",
                do="Run the same release on both sides",
            )
        return head

    def _put(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray) or value.dtype.str not in _DTYPES:
            if hasattr(value, "__place__"):
                return msgspec.msgpack.Ext(*value.__place__())
            raise TypeError(f"a {type(value).__name__} has no place in a call")
        flat = np.ascontiguousarray(value)
        if self._arena is not None and flat.nbytes >= LARGE_BYTES:
            block = self._arena.put(flat, self._to)
            if block is not None:
                held = _Held(value.dtype.str, value.shape, self._arena.id, block.number, block.offset)
                return msgspec.msgpack.Ext(_SHARED, _places.encode(held))
        place = _Place(value.dtype.str, value.shape, len(self._buffers))
        self._buffers.append(flat.data.cast("B") if flat.size else b"")
        return msgspec.msgpack.Ext(_ARRAY, _places.encode(place))

    def _take(self, code: int, data: memoryview) -> Any:
        if code == _SHARED:
            held = _read_held.decode(data)
            mapped = self._mapped[held.arena]
            return mapped.take(held.number, held.offset, _DTYPES[held.dtype], held.shape)
        if code in EXTENSIONS:
            return EXTENSIONS[code](data)
        if code != _ARRAY:
            raise ValueError(f"extension {code} is unknown")
        place = _read_place.decode(data)
        buffer = self._buffers[place.number]
        return np.frombuffer(buffer, _DTYPES[place.dtype]).reshape(place.shape)


_places = msgspec.msgpack.Encoder()
_read_place = msgspec.msgpack.Decoder(_Place)
_read_held = msgspec.msgpack.Decoder(_Held)
_of_thread = threading.local()


def codec() -> Codec:
    """This thread's own."""
    found: Codec | None = getattr(_of_thread, "codec", None)
    if found is None:
        found = _of_thread.codec = Codec()
    return found


def _broken(why: str) -> WireError:
    return WireError(f"it is no message of ours: {why}", where="message", do="Let only Sparring speak to this address")
