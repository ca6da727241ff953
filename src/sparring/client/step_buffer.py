"""A lane: one seat's steps in one episode, on their way from the game's thread to the background.

The game's thread alone appends (rows, then `count`; blocks; at last `over`), the background alone cuts, so
neither ever waits for the other. A row below `count` is whole; the last one may still earn.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparring.client.layout import TOLERANCE, Layout, refused
from sparring.wire.chunk import Array, Ending, Source
from sparring.wire.ids import EpisodeId, GameId, PlayerId


@dataclass(frozen=True, slots=True)
class About:
    """What every chunk of a lane says of itself."""

    game: GameId
    version: str
    spec: str
    episode: EpisodeId
    seat: int
    player: PlayerId | None
    source: Source
    sample_rate: float
    seed: int | None


class Budget:
    """How many bytes of steps may wait in memory, over all lanes of a connection."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._taken, self._lock = limit_bytes, 0, threading.Lock()

    def take(self, size: int) -> bool:
        """Whether `size` bytes were still free; they are now taken."""
        with self._lock:  # held for two additions, once in a block
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


class By(NamedTuple):
    """Who chose an action, how probable that was, and the memory that a recurrent model chose it with."""

    actor: str
    logp: float | None = None
    state: Array | None = None


class Block:
    """Preallocated columns for consecutive steps of one actor. `by` is any of them: each has what the others have."""

    __slots__ = (
        "action",
        "actor",
        "count",
        "cut",
        "first_step",
        "leaves",
        "legal",
        "logp",
        "reward",
        "size_bytes",
        "state",
        "tick",
    )

    def __init__(self, layout: Layout, first_step: int, by: By, with_legal: bool) -> None:
        rows, (actor, logp, state) = layout.capacity_steps, by
        self.leaves = [np.empty((rows, *slot.shape), slot.dtype) for slot in layout.slots]
        self.action = np.empty((rows, *layout.action.shape), layout.action_dtype)
        self.reward = np.empty(rows, np.float32)
        self.tick = np.empty(rows, np.int64)
        self.legal = np.empty((rows, layout.masks), np.uint8) if with_legal else None
        self.logp = np.empty(rows, np.float32) if logp is not None else None
        # Of every step, though a chunk carries its first one's alone: which that will be is not known yet.
        self.state = np.empty((rows, len(state)), np.float32) if state is not None else None
        self.actor, self.first_step = actor, first_step
        self.size_bytes = block_bytes(layout, by)
        self.count = 0  # rows written; the game's thread alone sets it
        self.cut = 0  # rows already made into chunks; the background alone sets it


def block_bytes(layout: Layout, by: By) -> int:
    """What a block of such steps takes of the budget."""
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
    """The game's side. `over` is set last, and then nothing is written any more."""

    def __init__(self, about: About, layout: Layout, budget: Budget, wake: Callable[[], None]) -> None:
        self.about, self.layout = about, layout
        self._budget, self._wake = budget, wake
        self.blocks: list[Block] = []  # the last is being written, those before it are full or of another actor
        self._block: Block | None = None
        self._tick = -1
        self.final: dict[str, Array] = {}
        self.ending: Ending = "running"
        self.outcome: float | None = None
        self.left = False  # ended without a final observation: the last one seen takes its place
        self.over = False
        self.lost = False  # there was no memory for more; what was written before still goes out
        self.dropped_steps = 0

    @property
    def steps(self) -> int:
        """Decisions recorded so far."""
        block = self._block
        return block.first_step + block.count if block is not None else 0

    def write(self, seen: Any, action: Any, reward: float, *, tick: int | None, legal: Any, by: By) -> None:
        """One step, checked; or ChunkRefused, and nothing is written."""
        layout, block = self.layout, self._block
        actor, logp, state = by
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
        if (
            block is None
            or block.count == layout.capacity_steps
            or block.actor != actor
            or (block.legal is None) != (legal is None)
            or (block.logp is None) != (logp is None)
            or (block.state is None) != (state is None)
        ):
            block = self._turn(by, legal is not None)
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
        """Many steps at once, checked by whoever made `rows`."""
        at, total = 0, len(rows.reward)
        while at < total and not self.lost:
            block = self._block
            fits = (
                block is not None
                and block.count < self.layout.capacity_steps
                and block.actor == actor
                and (block.legal is None) == (rows.legal is None)
                and (block.logp is None) == (rows.logp is None)
                and block.state is None
            )
            if block is None or not fits:
                block = self._turn(By(actor, None if rows.logp is None else 0.0), rows.legal is not None)
                if block is None:
                    break
            count = min(total - at, self.layout.capacity_steps - block.count)
            here, there = slice(block.count, block.count + count), slice(at, at + count)
            for leaf, given in zip(block.leaves, rows.leaves, strict=True):
                leaf[here] = given[there]
            block.action[here], block.reward[here], block.tick[here] = (
                rows.action[there],
                rows.reward[there],
                rows.tick[there],
            )
            if block.legal is not None and rows.legal is not None:
                block.legal[here] = rows.legal[there]
            if block.logp is not None and rows.logp is not None:
                block.logp[here] = rows.logp[there]
            self._tick = int(rows.tick[at + count - 1])
            block.count += count
            at += count
        self.dropped_steps += total - at

    def _turn(self, by: By, with_legal: bool) -> Block | None:
        """A fresh block behind the present one; None, and the lane is lost, where memory is used up."""
        if not self._budget.take(block_bytes(self.layout, by)):
            self.lost, self.over = True, True
            self._wake()
            return None
        block = Block(self.layout, self.steps, by, with_legal)
        self.blocks.append(block)
        full, self._block = self._block is not None, block
        if full:
            self._wake()
        return block

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
        """The true end, or a cut one, with what the seat saw last."""
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
        """Truncated, and nobody said what came after the last step: it is dropped, and what it saw ends the episode."""
        if not self.over:
            self.ending, self.left, self.over = "truncated", True, True
        self._wake()

    def release(self, blocks: int) -> None:
        """Let go of that many blocks from the front; called by the background alone."""
        size = sum(block.size_bytes for block in self.blocks[:blocks])
        del self.blocks[:blocks]
        self._budget.give(size)
