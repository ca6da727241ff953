"""The state of n games as bytes and back: named arrays, exactly, without a pickle."""

from collections.abc import Mapping

import msgspec
import numpy as np

from sparring.errors import WireError
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array


class _Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    game: str
    spec: str
    arrays: dict[str, bytes]


_decoder = msgspec.msgpack.Decoder(_Snapshot)


def freeze(spec: GameSpec, arrays: Mapping[str, Array]) -> bytes:
    """The arrays of one game's state as bytes."""
    raw = {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}
    return msgspec.msgpack.encode(_Snapshot(spec.id, spec.hash, raw))


def thaw(spec: GameSpec, state: bytes, arrays: Mapping[str, Array]) -> None:
    """Write what `freeze` gave into `arrays`, which must be the same in name, shape and dtype."""
    try:
        found = _decoder.decode(state)
    except msgspec.DecodeError as error:
        raise _unfit(spec, f"the bytes do not read: {error}") from None
    if (found.game, found.spec) != (spec.id, spec.hash):
        raise _unfit(spec, f"the state is one of {found.game} with spec {found.spec[:12]}")
    if {name: len(raw) for name, raw in found.arrays.items()} != {name: a.nbytes for name, a in arrays.items()}:
        raise _unfit(spec, "the state is one of another number of games")
    for name, array in arrays.items():
        array[...] = np.frombuffer(found.arrays[name], array.dtype).reshape(array.shape)


def _unfit(spec: GameSpec, wrong: str) -> WireError:
    return WireError(wrong, where=f"state of {spec.id}", do="Restore what save() of the same game with the same n gave")
