"""How one seat's steps lie in memory, and what a step must look like to be written there.

Checked when a step is written, since it is cheap: shape, dtype, action range and legality, reward bounds, rising ticks,
and that small float leaves are finite. A float leaf above `FINITE_AT_ONCE` entries is checked for NaN when
its chunk is encoded; the gateway checks the bounds of observations, and refuses the chunk with its reason.
"""

import functools
import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparring.errors import ChunkRefused, Missing
from sparring.games.spec import GameSpec, Leaf, SeatSpec
from sparring.wire.chunk import MAX_STEPS, Array, Header, Source
from sparring.wire.ids import EpisodeId, PlayerId

FINITE_AT_ONCE = 4096  # entries of a float leaf; more are checked when the chunk is encoded
BLOCK_BYTES = 448 << 10  # of a block's steps: with a final observation it fits MAX_ENCODED_BYTES even uncompressed
TOLERANCE = 1e-6  # of reward bounds and log-probabilities, as in games/chunk_checks.py


class Slot:
    """One leaf: where its rows go, and whether a value fits."""

    __slots__ = ("dtype", "finite", "name", "shape", "short")

    def __init__(self, leaf: Leaf) -> None:
        self.name = leaf.name
        self.short = leaf.name.removeprefix("observation/")
        self.dtype = np.dtype(leaf.dtype)
        self.shape = tuple(leaf.shape)
        self.finite = self.dtype.kind == "f" and math.prod(self.shape) <= FINITE_AT_ONCE

    def put(self, column: Array, row: int, value: Any) -> None:
        """Write `value` into that row of `column`, or raise ChunkRefused; the row is then undefined."""
        if type(value) is not np.ndarray or value.dtype is not self.dtype:
            value = self._converted(value)
        if value.shape != self.shape:
            raise refused(self.name, f"it has shape {value.shape}", value.shape, self.shape)
        column[row] = value
        # The dot product is not finite when an entry is not; it may also overflow, so the exact check decides.
        if self.finite and not math.isfinite(np.vdot(value, value)) and not np.isfinite(column[row]).all():
            raise refused(self.name, "it has a NaN or infinite entry", "not finite", "finite")

    def _converted(self, value: Any) -> Array:
        try:
            array = np.asarray(value)
            if array.dtype == self.dtype:
                return array
            if self.dtype.kind == "f" and array.dtype.kind in "fiub":
                with np.errstate(over="ignore"):  # the infinity is found, and named, by the check for finite entries
                    return array.astype(self.dtype)
            cast = array.astype(self.dtype)
            if array.dtype.kind in "iub" and (cast == array).all():
                return cast
        except (TypeError, ValueError, OverflowError) as error:
            raise refused(self.name, f"it is no array: {error}", type(value).__name__, self.dtype.name) from None
        raise refused(self.name, f"{array.dtype} does not fit {self.dtype}", array.dtype.name, self.dtype.name)


class StepLayout:
    """The columns of one seat."""

    def __init__(self, game: GameSpec, seat: int) -> None:
        if not 0 <= seat < len(game.seats):
            raise Missing(f"there is no seat {seat}", where=game.id, do=f"Use 0 to {len(game.seats) - 1}")
        self.seat: SeatSpec = game.seats[seat]
        self._game, self._index, self._hash = game, seat, game.hash
        self.max_ticks = game.max_ticks
        self.frame_stack = game.frame_stack
        self.slots = tuple(Slot(leaf) for leaf in self.seat.observation)
        self.action = self.seat.action
        self.action_dtype = np.dtype(self.action.dtype)
        self.choices = self.action.choices[0] if self.action.kind == "discrete" else 0
        self.masks = self.action.masks
        low, high = self.seat.reward_bounds
        self.low, self.high = low - TOLERANCE, high + TOLERANCE
        leaves = (*self.seat.observation, self.action)
        per_step = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
        self.step_bytes = per_step + self.masks + 4 + 8 + 4  # legal, reward, tick, behaviour_logp
        self.capacity_steps = max(1, min(MAX_STEPS, BLOCK_BYTES // self.step_bytes))

    def header(
        self,
        episode: EpisodeId,
        source: Source,
        *,
        player: PlayerId | None = None,
        sample_rate: float = 1.0,
        seed: int | None = None,
    ) -> Header:
        """What every chunk of one episode of this seat says; the cutter adds steps, actor and ending."""
        return Header(
            game=self._game.id,
            version=self._game.version,
            spec=self._hash,
            episode=episode,
            seat=self._index,
            first_step=0,
            steps=0,
            player=player,
            actor="",
            source=source,
            sample_rate=sample_rate,
            seed=seed,
        )

    def put_observation(self, columns: list[Array], row: int, observation: Any) -> None:
        """Write one observation, an array where there is one leaf or a mapping by leaf name."""
        slots = self.slots
        if type(observation) is np.ndarray or not isinstance(observation, Mapping):
            if len(slots) != 1:
                raise refused("observation", "it is one array", type(observation).__name__, self._names())
            slots[0].put(columns[0], row, observation)
            return
        for slot, column in zip(slots, columns, strict=True):
            value = observation.get(slot.short)
            if value is None and (value := observation.get(slot.name)) is None:
                raise refused(slot.name, "it is missing", sorted(map(str, observation)), self._names())
            slot.put(column, row, value)
        if len(observation) != len(slots):
            raise refused("observation", "it has unknown leaves", sorted(map(str, observation)), self._names())

    def checked_action(self, action: Any, legal: Any) -> Any:
        """The action as its column takes it."""
        if self.choices:
            try:
                index = operator.index(action)
            except TypeError:
                raise refused("action", f"{action!r} is no integer", str(action), self.choices - 1) from None
            if not 0 <= index < self.choices:
                raise refused("action", f"{index} is out of range", index, self.choices - 1)
            if legal is not None and not legal[index]:
                raise refused("action", f"{index} is not legal", index, "legal")
            return index
        array = np.asarray(action)
        if array.shape != self.action.shape:
            raise refused("action", f"it has shape {array.shape}", array.shape, self.action.shape)
        if self.action.choices:
            limits = np.reshape(self.action.choices, self.action.shape)
            if array.dtype.kind not in "iu" or (array < 0).any() or (array >= limits).any():
                raise refused("action", f"{array.tolist()} is out of range", array.tolist(), self.action.choices)
        elif not np.isfinite(array).all():
            raise refused("action", "it has a NaN or infinite entry", "not finite", "finite")
        return array

    def checked_legal(self, legal: Any) -> Array:
        """The mask as uint8 [choices]."""
        mask = np.asarray(legal)
        if mask.shape != (self.masks,) or not self.masks:
            raise refused("legal", f"it has shape {mask.shape}", mask.shape, (self.masks,))
        return mask if mask.dtype == np.uint8 else (mask != 0).astype(np.uint8)

    def _names(self) -> list[str]:
        return [slot.short for slot in self.slots]


@functools.lru_cache(maxsize=256)
def layout_of(game: GameSpec, seat: int) -> StepLayout:
    """The layout of that seat, made once; Missing where the game has no such seat."""
    return StepLayout(game, seat)


def refused(field: str, wrong: str, value: Any, limit: Any) -> ChunkRefused:
    """What record() raises; nothing was written, and the episode may go on."""
    wrong = f"{field}: {wrong}; the limit is {limit}"
    do = "Give what the game's spec says; nothing was recorded"
    return ChunkRefused(wrong, where="record", do=do, field=field, value=value, limit=limit)
