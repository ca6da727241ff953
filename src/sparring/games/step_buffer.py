"""One seat's steps in one episode, before `games/cutter.py` cuts them into chunks.

In the client the game's thread appends (rows, then `count`; blocks; at last `over`) and a background thread cuts, and
neither waits for the other. A row below `count` is complete, but the last one's reward may still grow.

Checked when a step is written, since it is cheap: shape, dtype, action range and legality, reward bounds, rising ticks,
and that small float leaves are finite. A float leaf above `FINITE_AT_ONCE` entries is checked for NaN when
its chunk is encoded; the gateway checks the bounds of observations, and refuses the chunk with its reason.
"""

import functools
import math
import operator
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparring.errors import ChunkRefused, Missing
from sparring.games.spec import GameSpec, Leaf, SeatSpec
from sparring.wire.chunk import MAX_STEPS, Array, Ending, Header, Source
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

    def checked_legal(self, legal: Any, *, to_act: bool = False) -> Array:
        """The mask as uint8 [choices]; `to_act`: one that leaves a choice. A recorded action is checked by itself."""
        mask = np.asarray(legal)
        if mask.shape != (self.masks,) or not self.masks:
            raise refused("legal", f"it has shape {mask.shape}", mask.shape, (self.masks,))
        if to_act and not all(part.any() for part in np.split(mask, np.cumsum(self.action.choices)[:-1])):
            raise refused("legal", "nothing is legal", mask.tolist(), "one legal action")
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


class MemoryBudget:
    """Bounds the bytes of steps that wait in memory, over all buffers of one connection."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._taken, self._lock = limit_bytes, 0, threading.Lock()

    def take(self, size: int) -> bool:
        """Whether `size` bytes were still free; they are now taken."""
        with self._lock:  # held for two additions, once per block
            if self._taken + size > self._limit:
                return False
            self._taken += size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._taken -= size

    @property
    def taken_bytes(self) -> int:
        return self._taken


class Behaviour(NamedTuple):
    """Who chose an action, with which log-probability, and from which state where the model is recurrent."""

    actor: str
    logp: float | None = None
    state: Array | None = None


class Block:
    """Preallocated columns for consecutive steps of one actor; `by` is the behaviour of its first step."""

    def __init__(self, layout: StepLayout, first_step: int, by: Behaviour, with_legal: bool) -> None:
        rows, (actor, logp, state) = layout.capacity_steps, by
        self.leaves = [np.empty((rows, *slot.shape), slot.dtype) for slot in layout.slots]
        self.action = np.empty((rows, *layout.action.shape), layout.action_dtype)
        self.reward = np.empty(rows, np.float32)
        self.tick = np.empty(rows, np.int64)
        self.legal = np.empty((rows, layout.masks), np.uint8) if with_legal else None
        self.logp = np.empty(rows, np.float32) if logp is not None else None
        # A chunk carries the state of its first step alone, and which step that will be is not known yet.
        self.state = np.empty((rows, len(state)), np.float32) if state is not None else None
        self.actor, self.first_step = actor, first_step
        self.size_bytes = block_bytes(layout, by)
        self.count = 0  # rows written; only the writing thread sets it
        self.cut = 0  # rows already made into chunks; only the cutting thread sets it


def block_bytes(layout: StepLayout, by: Behaviour) -> int:
    """The memory of a block of such steps."""
    return layout.capacity_steps * (layout.step_bytes + (0 if by.state is None else 4 * len(by.state)))


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive steps of one seat as columns, each with the steps first."""

    leaves: list[Array]
    action: Array
    reward: Array
    tick: Array
    legal: Array | None
    logp: Array | None


class StepBuffer:
    """What the game writes to. `over` is set last; nothing is written after it.

    `header` is what every chunk of the buffer says, without its steps. `wake` is called when there is something to cut;
    without a budget the caller cuts often enough itself.
    """

    def __init__(
        self,
        header: Header,
        layout: StepLayout,
        budget: MemoryBudget | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.header, self.layout = header, layout
        self._budget, self._wake = budget, wake
        self.blocks: list[Block] = []  # the last is being written, those before it are full or of another actor
        self._block: Block | None = None
        self._tick = -1
        self.final: dict[str, Array] = {}
        self.ending: Ending = "running"
        self.outcome: float | None = None
        self.left = False  # ended without a final observation: the last one seen takes its place
        self.over = False
        self.lost = False  # the memory budget is used up; what was written before is still cut
        self.dropped_steps = 0

    @property
    def steps(self) -> int:
        """Decisions recorded so far."""
        block = self._block
        return block.first_step + block.count if block is not None else 0

    def write(self, seen: Any, action: Any, reward: float, *, tick: int | None, legal: Any, by: Behaviour) -> None:
        """One step, checked; or ChunkRefused, and nothing is written."""
        layout, (_, logp, state) = self.layout, by
        if self.lost:
            self.dropped_steps += 1
            return
        if legal is not None:
            legal = layout.checked_legal(legal)
        action = layout.checked_action(action, legal)
        if not layout.low <= reward <= layout.high:
            raise refused("reward", f"{reward} is out of bounds", reward, layout.seat.reward_bounds)
        if logp is not None and not -1e30 < logp <= (TOLERANCE if layout.masks else 1e30):
            raise refused("behaviour_logp", f"{logp} is no log-probability", logp, 0.0)
        if tick is None:
            tick = self._tick + 1
        elif tick <= self._tick:
            raise refused("tick", f"{tick} does not rise", tick, self._tick + 1)
        if tick > layout.max_ticks:
            raise refused("tick", f"{tick} is after the last", tick, layout.max_ticks)
        block = self._room(by, legal is not None)
        if block is None:
            self.dropped_steps += 1
            return
        row = block.count
        layout.put_observation(block.leaves, row, seen)
        block.action[row], block.reward[row], block.tick[row] = action, reward, tick
        if block.legal is not None:
            block.legal[row] = legal
        if block.logp is not None:
            block.logp[row] = logp
        if block.state is not None:
            block.state[row] = state
        self._tick = tick
        block.count = row + 1

    def write_rows(self, rows: Rows, actor: str) -> None:
        """Many steps at once, which the caller has checked."""
        at, total = 0, len(rows.reward)
        by, with_legal = Behaviour(actor, None if rows.logp is None else 0.0), rows.legal is not None
        while at < total and not self.lost:
            block = self._room(by, with_legal)
            if block is None:
                break
            count = min(total - at, self.layout.capacity_steps - block.count)
            here, there = slice(block.count, block.count + count), slice(at, at + count)
            for leaf, given in zip(block.leaves, rows.leaves, strict=True):
                leaf[here] = given[there]
            block.action[here], block.reward[here] = rows.action[there], rows.reward[there]
            block.tick[here] = rows.tick[there]
            if block.legal is not None and rows.legal is not None:
                block.legal[here] = rows.legal[there]
            if block.logp is not None and rows.logp is not None:
                block.logp[here] = rows.logp[there]
            self._tick = int(rows.tick[at + count - 1])
            block.count += count
            at += count
        self.dropped_steps += total - at

    def _room(self, by: Behaviour, with_legal: bool) -> Block | None:
        """The block for one more step: the current one, or a new one where it is full or of another actor or columns.
        None, and `lost` is set, where the memory budget is used up."""
        block = self._block
        if (
            block is not None
            and block.count < self.layout.capacity_steps
            and block.actor == by.actor
            and (block.legal is not None) == with_legal
            and (block.logp is None) == (by.logp is None)
            and (block.state is None) == (by.state is None)
        ):
            return block
        if self._budget is not None and not self._budget.take(block_bytes(self.layout, by)):
            self.lost, self.over = True, True
            self._wake()
            return None
        self._block = Block(self.layout, self.steps, by, with_legal)
        self.blocks.append(self._block)
        if block is not None:
            self._wake()
        return self._block

    def earn(self, reward: float) -> None:
        """Add to the last step what its player earned since, while others moved."""
        block = self._block
        if self.lost:
            return
        if block is None or block.count == 0:
            raise refused("reward", "it was earned before the first step", reward, "one step recorded")
        total = float(block.reward[block.count - 1]) + reward
        if not self.layout.low <= total <= self.layout.high:
            raise refused("reward", f"{total} in all is out of bounds", total, self.layout.seat.reward_bounds)
        block.reward[block.count - 1] = total

    def end(self, final_observation: Any, *, terminated: bool, outcome: float | None) -> None:
        """Terminate, or truncate, with what the seat saw last."""
        rows = [np.empty((1, *slot.shape), slot.dtype) for slot in self.layout.slots]
        self.layout.put_observation(rows, 0, final_observation)
        if outcome is not None and not -1e30 < outcome < 1e30:
            raise refused("outcome", f"{outcome} is no score", outcome, "finite")
        if not self.over:
            self.final = {f"final_{slot.name}": row[0] for slot, row in zip(self.layout.slots, rows, strict=True)}
            self.ending, self.outcome = "terminated" if terminated else "truncated", outcome
            self.over = True
        self._wake()

    def leave(self) -> None:
        """Truncate without a final observation: the last step is dropped, and what it saw is the final observation."""
        if not self.over:
            self.ending, self.left, self.over = "truncated", True, True
        self._wake()

    def release(self, blocks: int) -> None:
        """Free that many blocks from the front; only the cutting thread calls it."""
        size = sum(block.size_bytes for block in self.blocks[:blocks])
        del self.blocks[:blocks]
        if self._budget is not None:
            self._budget.give(size)
