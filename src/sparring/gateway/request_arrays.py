"""What a request carries, as arrays that the game's spec allows. What does not fit is refused, never wrapped around.

Chunks in JSON become columns; the observation, mask and state of an act request become arrays.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparring.errors import ChunkRefused
from sparring.games.spec import GameSpec, Leaf, SeatSpec
from sparring.wire.chunk import Array

_FIXED = {"reward": "float32", "tick": "int64", "legal": "uint8", "behaviour_logp": "float32"}


def dtypes(seat: SeatSpec) -> dict[str, str]:
    """The dtype of every column that a chunk of this seat may have."""
    leaves = {leaf.name: leaf.dtype for leaf in (*seat.observation, seat.action)}
    final = {f"final_{leaf.name}": leaf.dtype for leaf in seat.observation}
    return {**leaves, **final, **_FIXED}


def columns(lists: Mapping[str, Any], seat: SeatSpec) -> dict[str, Array]:
    """Every list as an array. A name that the spec does not know becomes float64; `games.checks` refuses it by name."""
    known = dtypes(seat) | {name: "float32" for name in lists if name.startswith("state/")}
    return {name: array(name, value, known.get(name, "float64")) for name, value in lists.items()}


def array(name: str, value: Any, dtype: str) -> Array:
    """One column. Whole numbers stay within their dtype and floats within theirs, or the column is refused."""
    try:
        found = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise _bad_column(name, str(error)[:100], "an array", "its rows differ in length or kind") from None
    if found.dtype.kind not in "biuf":
        raise _bad_column(name, _first(found), "numbers", "it holds what is no number, or one beyond 64 bits")
    target = np.dtype(dtype)
    if not found.size:
        return found.astype(target)
    low, high = found.min().item(), found.max().item()
    limits: Any = np.iinfo(target) if target.kind in "iu" else np.finfo(target)
    if target.kind in "iu" and found.dtype.kind == "f":
        if not (np.isfinite(found).all() and (found == np.floor(found)).all()):
            raise _bad_column(name, str(low), dtype, "it holds numbers that are not whole")
        low, high = int(low), int(high)
    if low < limits.min or high > limits.max:  # NaN passes here, and is refused by the checks of every chunk
        value = low if low < limits.min else high
        raise _bad_column(name, value, [limits.min.__str__(), limits.max.__str__()], f"it does not fit {dtype}")
    return found.astype(target)


def _first(found: Array) -> str:
    return str(found.flat[0])[:60] if found.size else ""


def seat_of(spec: GameSpec, seat: int) -> SeatSpec:
    """That seat; ChunkRefused where the game has no such one."""
    if not 0 <= seat < len(spec.seats):
        raise _refused("seat", seat, len(spec.seats) - 1, "there is no such seat")
    return spec.seats[seat]


def observation_of(seat: SeatSpec, given: Mapping[str, Any], frames: int = 1) -> dict[str, Array]:
    """Every leaf by its full name, [*shape], finite and in bounds. Lists may be nested or flat; names with or
    without "observation/"; bytes are the raw little-endian buffer."""
    named = {name if name.startswith("observation/") else f"observation/{name}": value for name, value in given.items()}
    known = {leaf.name for leaf in seat.observation}
    if stray := sorted(named.keys() - known) or sorted(known - named.keys()):
        raise _refused(stray[0][:80], None, sorted(known), "the leaf is missing, or not of this seat")
    return {leaf.name: _leaf(leaf, named[leaf.name], leaf.stacked(frames)) for leaf in seat.observation}


def legal_of(seat: SeatSpec, given: Any) -> Array | None:
    """The mask as uint8 [choices], with at least one legal entry for each choice; None where all are legal."""
    if given is None:
        return None
    mask = array("legal", given, "uint8")
    if mask.shape != (seat.action.masks,) or not seat.action.masks:
        raise _refused("legal", list(mask.shape), [seat.action.masks], "the mask has another length")
    if mask.max() > 1:
        raise _refused("legal", int(mask.max()), [0, 1], "a mask holds 0 and 1")
    if not all(part.any() for part in np.split(mask, np.cumsum(seat.action.choices)[:-1])):
        raise _refused("legal", mask.tolist(), "one legal action", "nothing is legal")
    return mask


def state_of(given: list[float] | None) -> Array | None:
    """A recurrent model's memory as float32 [numbers], finite; None where an episode begins."""
    if given is None:
        return None
    state = array("state", given, "float32")
    if not np.isfinite(state).all():
        raise _refused("state", "NaN or inf", "finite numbers", "it holds no number")
    return state


def _leaf(leaf: Leaf, value: Any, shape: tuple[int, ...]) -> Array:
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            found: Array = np.frombuffer(value, leaf.dtype)
        except ValueError:
            raise _refused(leaf.name, len(value), list(shape), "the buffer has another size") from None
    else:
        found = array(leaf.name, value, leaf.dtype)
    if found.size != np.prod(shape, dtype=int) or (found.ndim > 1 and found.shape != shape):
        raise _refused(leaf.name, list(found.shape), list(shape), "the shape differs")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise _refused(leaf.name, "NaN or inf", "finite numbers", "it holds no number")
    high = float(leaf.high) if leaf.high is not None else float(max(leaf.choices) - 1) if leaf.choices else np.inf
    low = float(leaf.low) if leaf.low is not None else 0.0 if leaf.choices else -np.inf
    slack = 1e-6 * max(1.0, abs(low), abs(high)) if np.isfinite([low, high]).all() else 0.0
    if found.size and not (low - slack <= found.min() and found.max() <= high + slack):
        value = found.min() if found.min() < low else found.max()
        raise _refused(leaf.name, value.item(), [leaf.low, leaf.high], "a value is out of bounds")
    return found.reshape(shape)


def _refused(field: str, value: Any, limit: Any, wrong: str) -> ChunkRefused:
    do = "Send what the game's spec names"
    return ChunkRefused(wrong, where=f"observation, {field}", do=do, field=field, value=value, limit=limit)


def _bad_column(field: str, value: Any, limit: Any, wrong: str) -> ChunkRefused:
    do = "Send nested lists of one shape, in the spec's range"
    return ChunkRefused(wrong, where=f"chunk, {field}", do=do, field=field, value=value, limit=limit)
