"""A pool over a backend's entries: it packs, verifies, and reads from the registry what the backend lost.

An entry is one value, so that no reader sees a part of it:

    length of the header (4 bytes) | header: format, the model's id, size and CRC-32 of each part | card.json | files

The id is the SHA-256 of the card, and the card holds that of each file. A process verifies a model when it reads it for
the first time, and then keeps it: an id never means other bytes, so there is nothing to ask a second time. Who puts a
model has verified it. Where nobody else can write (`Entries.private`) a reader compares the files' CRC-32 instead of
their SHA-256, which would be most of its time (docs/decisions/0346).
"""

import logging
import struct
import threading
import zlib
from collections import OrderedDict
from typing import Annotated, Generic, TypeVar

import msgspec

from sparring.errors import Missing, ModelDamaged, Refused, StoreFailed, Unreachable
from sparring.pool.protocol import Entries, Pool
from sparring.registry.registry import (
    CARD,
    ID,
    MAX_CARD_BYTES,
    MAX_FILE_BYTES,
    Registry,
    check_whole,
    place,
    read_card,
    read_model,
)
from sparring.wire.ids import ModelId
from sparring.wire.model import Model

CACHE_BYTES = 256 << 20  # of verified models in one process
FORMAT = 2
_LENGTH = struct.Struct("<I")
_AGAIN = "Put it again, or open the pool with a registry"

Value = TypeVar("Value")
log = logging.getLogger(__name__)


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    model: str
    sizes: dict[str, Annotated[int, msgspec.Meta(ge=0)]]  # of the parts, in their order
    checksums: tuple[int, ...]  # their CRC-32


_HEADER = msgspec.msgpack.Decoder(_Header)  # made once: see docs/decisions/0330


def pack(model: Model) -> bytes:
    """The model as one entry, the same for equal models; ModelDamaged unless it is exactly what its card says."""
    parts = {CARD: check_whole(model), **dict(sorted(model.files.items()))}
    sizes = {name: len(part) for name, part in parts.items()}
    checksums = tuple(zlib.crc32(part) for part in parts.values())
    header = msgspec.msgpack.encode(_Header(FORMAT, model.id, sizes, checksums))
    return b"".join((_LENGTH.pack(len(header)), header, *parts.values()))


def unpack(model: ModelId, entry: bytes | memoryview, *, private: bool = False) -> Model:
    """The model in an entry, if that is what the id names; ModelDamaged otherwise. `private`: nobody could write it who
    did not use `pack`."""
    view = memoryview(entry)
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(view)[0]
        header = _HEADER.decode(view[_LENGTH.size : start])
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelDamaged(f"its entry has no header: {error}", where=place(model), do=_AGAIN) from None
    if header.format != FORMAT or header.model != model or start + sum(header.sizes.values()) != len(view):
        wrong = f"its entry is of format {header.format}, of {header.model[:12]}, and has {len(view)} bytes"
        raise ModelDamaged(wrong, where=place(model), do=_AGAIN)
    parts = {}
    for name, size in header.sizes.items():
        parts[name], start = bytes(view[start : start + size]), start + size

    def part(name: str, max_bytes: int) -> bytes:
        if name not in parts:
            raise ModelDamaged(f"its entry has no {name}", where=place(model), do=_AGAIN)
        return parts[name]

    if not private:
        return read_model(part, model)
    if tuple(map(zlib.crc32, parts.values())) != header.checksums:
        raise ModelDamaged("its entry has other checksums than were written", where=place(model), do=_AGAIN)
    card = read_card(part(CARD, MAX_CARD_BYTES), model)
    return Model(card, {name: part(name, MAX_FILE_BYTES) for name in card.files})


class LeastRecentlyUsed(Generic[Value]):
    """Values by model, at most so many bytes of them: the longest unused goes first. Threads may share one."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._bytes = max_bytes, 0
        self._held: OrderedDict[ModelId, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, model: ModelId, value: Value, size_bytes: int) -> None:
        """Refused where the value alone is too large."""
        if size_bytes > self.max_bytes:
            wrong = f"it has {size_bytes:,} bytes, and the pool holds {self.max_bytes:,}"
            raise Refused(wrong, where=place(model), do="Raise max_bytes in [league] pool_url", limit=self.max_bytes)
        with self._lock:
            self._forget(model)
            self._held[model] = value, size_bytes
            self._bytes += size_bytes
            while self._bytes > self.max_bytes:
                self._forget(next(iter(self._held)))

    def get(self, model: ModelId) -> Value | None:
        with self._lock:
            if (found := self._held.get(model)) is None:
                return None
            self._held.move_to_end(model)
            return found[0]

    def ids(self) -> list[ModelId]:
        with self._lock:
            return sorted(self._held)

    def drop(self, model: ModelId) -> None:
        with self._lock:
            self._forget(model)

    def _forget(self, model: ModelId) -> None:
        _, size_bytes = self._held.pop(model, (None, 0))
        self._bytes -= size_bytes


class CachedPool(Pool):
    """Verified models of this process over `entries` that all processes share; without these it is its own alone."""

    def __init__(
        self, entries: Entries | None = None, registry: Registry | None = None, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._entries, self._registry = entries, registry
        self._verified = LeastRecentlyUsed[Model](cache_bytes)

    def put(self, model: Model) -> None:
        if self._entries is None:
            check_whole(model)
            self._verified.put(model.id, model, _size_bytes(model))
        else:
            self._entries.put(model.id, pack(model))
            self._keep(model.id, model)

    def get(self, model_id: ModelId) -> Model:
        if (found := self._verified.get(model_id)) is not None:
            return found
        try:
            found = self._read(model_id)
        except (Missing, ModelDamaged) as error:
            if self._registry is None:
                raise
            if isinstance(error, ModelDamaged):
                log.warning("read again from the registry: %s", error)
            found = self._registry.fetch(model_id)
            self._put_back(found)
        self._keep(model_id, found)
        return found

    def ids(self) -> list[ModelId]:
        return self._verified.ids() if self._entries is None else self._entries.ids()

    def drop(self, model_id: ModelId) -> None:
        _check_id(model_id)
        self._verified.drop(model_id)
        if self._entries is not None:
            self._entries.drop(model_id)

    def close(self) -> None:
        if self._entries is not None:
            self._entries.close()

    def _read(self, model: ModelId) -> Model:
        _check_id(model)
        entry = None if self._entries is None else self._entries.get(model)
        if entry is None:
            wrong = f"it is not in the pool at {self._entries or 'memory:// of this process'}, or no longer"
            raise Missing(wrong, where=place(model), do=_AGAIN)
        return unpack(model, entry, private=self._entries is not None and self._entries.private)

    def _put_back(self, model: Model) -> None:
        """Who asked has the model from the registry, whatever becomes of this."""
        if self._entries is not None:
            try:
                self._entries.put(model.id, pack(model))
            except (StoreFailed, Unreachable, Refused) as error:
                log.warning("every process reads it from the registry: %s", error)

    def _keep(self, model_id: ModelId, model: Model) -> None:
        if (size_bytes := _size_bytes(model)) <= self._verified.max_bytes:
            self._verified.put(model_id, model, size_bytes)


def _check_id(model: ModelId) -> None:
    if not ID.match(model):  # no other text may become a key
        raise Missing(f"{model[:80]!r} is not a model's id", where="pool", do="Give its 64 hex digits")


def _size_bytes(model: Model) -> int:
    return sum(len(content) for content in model.files.values())
