"""JSON at the edge: nested lists become columns of the spec's dtypes, and what does not fit is refused, not wrapped."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparring.errors import ChunkRefused
from sparring.games.spec import SeatSpec
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
        raise _refused(name, str(error)[:100], "an array", "its rows differ in length or kind") from None
    if found.dtype.kind not in "biuf":
        raise _refused(name, _first(found), "numbers", "it holds what is no number, or one beyond 64 bits")
    target = np.dtype(dtype)
    if not found.size:
        return found.astype(target)
    low, high = found.min().item(), found.max().item()
    limits: Any = np.iinfo(target) if target.kind in "iu" else np.finfo(target)
    if target.kind in "iu" and found.dtype.kind == "f":
        if not (np.isfinite(found).all() and (found == np.floor(found)).all()):
            raise _refused(name, str(low), dtype, "it holds numbers that are not whole")
        low, high = int(low), int(high)
    if low < limits.min or high > limits.max:  # NaN passes here, and is refused by the checks of every chunk
        value = low if low < limits.min else high
        raise _refused(name, value, [limits.min.__str__(), limits.max.__str__()], f"it does not fit {dtype}")
    return found.astype(target)


def _first(found: Array) -> str:
    return str(found.flat[0])[:60] if found.size else ""


def _refused(field: str, value: Any, limit: Any, wrong: str) -> ChunkRefused:
    do = "Send nested lists of one shape, in the spec's range"
    return ChunkRefused(wrong, where=f"chunk, {field}", do=do, field=field, value=value, limit=limit)
