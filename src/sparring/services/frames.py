"""A call and its answer as frames: a small typed head, then each larger array as its own raw buffer.

    [head]  msgpack of Head: version, kind, id, verb, seconds left, body
    [array] as it lies in memory, one frame for each array of the body above 4 kB, in order

A smaller array stands in the head itself, since a frame costs more than a copy of it. One of 64 kB or more that lies in
shared memory (shared_memory.py) has no frame either: its place says where.

Small messages to the same place may travel together, as one frame: a mark, how many, and their heads (`together`).

The body is plain data (dicts with text keys, lists, tuples as lists, numbers, text, bytes, None) in which an array
stands as its dtype, shape and place. Nothing is pickled; what is too large, too many or of another version is refused.
"""

import struct
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sparring.errors import WireError
from sparring.services.shared_memory import LARGE_BYTES, Arena, Mapped
from sparring.wire.chunk import DTYPES

VERSION = 3
CALL, TASK, ANSWER, ACCEPTED, ERROR = range(5)  # kinds of message
MAX_HEAD_BYTES = 4 << 20
MAX_ARRAYS = 4096
MAX_BYTES = 1 << 30  # of one message's arrays
INLINE_BYTES = 4096  # arrays up to this stand in the head
MOST_TOGETHER = 64  # messages in one frame
SMALL_BYTES = 8192  # of a head that may travel with others
_TOGETHER = 0xC1  # a byte that begins nothing in msgpack
_MOST_BYTES = 4 + MOST_TOGETHER * SMALL_BYTES
_ARRAY, _SHARED, SHARED_VALUE = 1, 2, 3  # extensions of a body
_FIRST_INLINE = 32  # then one code for each dtype
_INLINE = {_FIRST_INLINE + place: np.dtype(name) for place, name in enumerate((*DTYPES, "bool"))}
_CODES = {dtype: code for code, dtype in _INLINE.items()}
_DTYPES = {dtype.str: dtype for dtype in _CODES}
_SHAPES = [struct.Struct(f"<B{rank}Q") for rank in range(65)]  # NumPy knows 64 dimensions


Unread = tuple[int, WireError]  # a message that cannot be read: its number, and why


class Head(msgspec.Struct, array_like=True):
    """What a message is, beside its arrays."""

    version: int
    kind: int
    id: int
    verb: str  # of an answer: ""
    seconds: float  # that the caller still waits; of an answer: how long it took
    body: Any


class Codec:
    """Messages to frames and back. One for each thread: it holds the arrays of the message at hand."""

    def __init__(self) -> None:
        self._leaving: list[memoryview] = []  # arrays of the message that is encoded, beside its head
        self._came: Sequence[Any] = ()  # frames of the message that is decoded
        self._arena: Arena | None = None
        self._to = b""
        self._mapped: Mapped | None = None
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._put)
        self._decoder = msgspec.msgpack.Decoder(Head, ext_hook=self._take)
        self._several = msgspec.msgpack.Decoder(list[Head], ext_hook=self._take)

    def encode(self, head: Head, arena: Arena | None = None, to: bytes = b"") -> list[Any]:
        """The frames of a message; arrays are not copied where their memory is in order, except small ones into the
        head, and large ones into `arena`, where there is one, for `to`. WireError where something has no place."""
        self._arena, self._to = arena, to
        try:
            first = self._encoder.encode(head)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            self._leaving = []
            raise WireError(str(error), where="call", do="Send plain data and arrays") from None
        if not self._leaving and len(first) <= MAX_HEAD_BYTES:
            return [first]
        frames, self._leaving = [first, *self._leaving], []
        _check(frames)
        return frames

    def decode(self, frames: Sequence[Any], mapped: Mapped | None = None) -> Head:
        """The message in frames (bytes or buffers); its arrays are views of them, or of the `mapped` arena,
        and small ones are copies; none can be changed. WireError where it is none."""
        first = frames[0]
        if len(frames) > MAX_ARRAYS + 1 or len(first) > MAX_HEAD_BYTES:
            raise _broken(f"{len(first)} bytes of head and {len(frames) - 1} arrays")
        self._came, self._mapped = frames, mapped
        try:
            head = self._decoder.decode(first)
        except _NOT_OURS as error:
            raise _broken(str(error)) from None
        finally:
            self._came, self._mapped = (), None  # they may be large
        if head.version != VERSION:
            wrong = f"it speaks version {head.version}, and {VERSION} is spoken here"
            raise WireError(wrong, where="message", do="Run the same release on both sides")
        return head

    def decode_each(self, frames: Sequence[Any], mapped: Mapped | None = None) -> list[Head | Unread]:
        """The messages that travelled together; of one that cannot be read its number, and why."""
        first = frames[0]
        if first[:1] != _SEVERAL:
            try:
                return [self.decode(frames, mapped)]
            except WireError as error:
                number = _number_of(first)
                return [] if number is None else [(number, error)]
        if len(first) > _MOST_BYTES:
            return []
        self._mapped = mapped
        try:
            heads: list[Head] = self._several.decode(memoryview(first)[1:])
            if all(head.version == VERSION for head in heads):
                return [*heads]
        except _NOT_OURS:
            pass
        finally:
            self._mapped = None
        try:
            parts = _read_heads.decode(memoryview(first)[1:])
        except _NOT_OURS:
            return []
        return [one for part in parts for one in self.decode_each([bytes(part)], mapped)]

    def _put(self, value: Any) -> Any:
        if value.__class__ is not np.ndarray:
            return self._put_other(value)
        code = _CODES.get(value.dtype)
        if code is None:
            raise TypeError(f"an array of {value.dtype} has no place in a call")
        if value.nbytes <= INLINE_BYTES:
            rank = value.ndim
            return msgspec.msgpack.Ext(code, _SHAPES[rank].pack(rank, *value.shape) + value.tobytes())
        flat = np.ascontiguousarray(value)
        if self._arena is not None and flat.nbytes >= LARGE_BYTES:
            block = self._arena.put(flat, self._to)
            if block is not None:
                held = (value.dtype.str, value.shape, self._arena.id, block)
                return msgspec.msgpack.Ext(_SHARED, _places.encode(held))
        self._leaving.append(flat.data.cast("B"))
        place = (value.dtype.str, value.shape, len(self._leaving))
        return msgspec.msgpack.Ext(_ARRAY, _places.encode(place))

    def _put_other(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return self._put(np.asarray(value))
        if hasattr(value, "__place__"):  # a SharedValue
            return msgspec.msgpack.Ext(*value.__place__())
        raise TypeError(f"a {type(value).__name__} has no place in a call")

    def _take(self, code: int, data: memoryview) -> Any:
        dtype = _INLINE.get(code)
        if dtype is not None:
            # Bytes of its own: to copy so few costs less than an array that is not aligned, and they cannot be changed.
            rank, (_, *size) = data[0], _SHAPES[data[0]].unpack_from(data)
            return np.ndarray(size, dtype, bytes(data[1 + 8 * rank :]))
        if code == _SHARED:
            kind, shape, arena, number = _read_shared.decode(data)
            if self._mapped is None or self._mapped.id != arena:
                raise LookupError("it lies in an arena that is not known")
            return self._mapped.take(number, _DTYPES[kind], shape)
        if code == SHARED_VALUE:
            from sparring.services.shared_value import open_shared_value

            return open_shared_value(data)
        if code != _ARRAY:
            raise ValueError(f"extension {code} is unknown")
        kind, shape, number = _read_array.decode(data)
        if number < 1:
            raise ValueError("the head is no array")
        array = np.frombuffer(self._came[number], _DTYPES[kind]).reshape(shape)
        array.setflags(write=False)
        return array


_NOT_OURS = (
    *(msgspec.MsgspecError, ValueError, TypeError, LookupError, struct.error),
    *(RecursionError, OverflowError, MemoryError, WireError),
)
_places = msgspec.msgpack.Encoder()
_read_array = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], int])  # dtype, shape, number of its frame
_read_shared = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], int, int])  # dtype, shape, arena, first block
_read_heads = msgspec.msgpack.Decoder(list[msgspec.Raw])
_SEVERAL = bytes((_TOGETHER,))
_of_thread = threading.local()


def codec() -> Codec:
    """This thread's own."""
    found: Codec | None = getattr(_of_thread, "codec", None)
    if found is None:
        found = _of_thread.codec = Codec()
    return found


def is_small(frames: Sequence[Any]) -> bool:
    """Whether a message may travel with others."""
    return len(frames) == 1 and len(frames[0]) <= SMALL_BYTES


def together(heads: Sequence[bytes]) -> bytes:
    """One frame that holds these heads, of MOST_TOGETHER messages without frames of their own at most."""
    return heads[0] if len(heads) == 1 else bytes((_TOGETHER, 0xDC, 0, len(heads))) + b"".join(heads)


class _Envelope(msgspec.Struct, array_like=True):
    """What every version's head begins with."""

    version: int
    kind: int
    id: int


_read_envelope = msgspec.msgpack.Decoder(_Envelope)


def _number_of(first: Any) -> int | None:
    """The number of a message that cannot be read otherwise, so that its sender can be told; None where it has none."""
    try:
        return _read_envelope.decode(first).id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _check(frames: list[Any]) -> None:
    """Refuse here what the other side would not take."""
    size = sum(len(frame) for frame in frames[1:])
    if len(frames[0]) > MAX_HEAD_BYTES or len(frames) > MAX_ARRAYS + 1 or size > MAX_BYTES:
        wrong = f"{len(frames[0])} bytes of plain data and {len(frames) - 1} arrays of {size} bytes are too much"
        raise WireError(wrong, where="call", do="Send less at once; put what is large into arrays")


def _broken(why: str) -> WireError:
    return WireError(f"it is no message of ours: {why}", where="message", do="Let only Sparring speak to this address")
