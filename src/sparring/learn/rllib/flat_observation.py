"""All that a seat sees as one row of numbers, since RLlib's parts agree best on a flat box, and back.

The leaves come one after another in the spec's order, then one number for each choice that says whether it is
legal. A row is of uint8 where every leaf is, and of float32 otherwise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.games.protocol import Columns
from sparring.games.spec import SeatSpec
from sparring.wire.chunk import Array

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packing:
    """How the leaves of a seat lie in a row."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # in stacks, where the spec says so
    masks: int  # choices whose legality ends the row; 0: everything always is
    dtype: str

    @property
    def width(self) -> int:
        return sum(map(math.prod, self.shapes)) + self.masks

    def packed(self, seen: Mapping[str, Array], legal: Array | None) -> Array:
        """[n, width] of columns [n, *shape]; what `legal` does not say is legal."""
        n = len(seen[self.names[0]])
        rows = np.empty((n, self.width), self.dtype)
        at = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = math.prod(shape)
            rows[:, at : at + size] = seen[name].reshape(n, size)
            at += size
        if self.masks:
            rows[:, at:] = 1 if legal is None else legal
        return rows

    def columns(self, rows: Array) -> Columns:
        """The leaves in rows [n, width]."""
        return self._leaves(rows)

    def unpacked(self, rows: "Tensor") -> tuple[dict[str, "Tensor"], "Tensor | None"]:
        """The leaves in rows [n, width], and bool [n, masks] of what is legal."""
        return self._leaves(rows), (rows[:, -self.masks :] > 0 if self.masks else None)

    def _leaves(self, rows: Any) -> dict[str, Any]:
        leaves, at = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = math.prod(shape)
            leaves[name] = rows[:, at : at + size].reshape(len(rows), *shape)
            at += size
        return leaves


def packing_of(seat: SeatSpec, frame_stack: int, *, masks: bool) -> Packing:
    """How a seat's leaves are packed; `masks`: what is legal is said."""
    small = all(leaf.dtype == "uint8" for leaf in seat.observation)
    return Packing(
        names=tuple(leaf.name for leaf in seat.observation),
        shapes=tuple(leaf.stacked(frame_stack) for leaf in seat.observation),
        masks=seat.action.masks if masks else 0,
        dtype="uint8" if small else "float32",
    )
