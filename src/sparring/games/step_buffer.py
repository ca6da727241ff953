"""One seat's steps in one episode, before `games/cutter.py` cuts them into chunks.

In the client the game's thread appends (rows, then `count`; blocks; at last `over`) and a background thread cuts, and
neither waits for the other. A row below `count` is complete, but the last one's reward may still grow.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparring.games.step_layout import TOLERANCE, StepLayout, refused
from sparring.wire.chunk import Array, Ending, Header


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
        layout, block = self.layout, self._block
        _, logp, state = by
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
        if block is None or not self._fits(block, by, legal is not None):
            block = self._next_block(by, legal is not None)
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
            block = self._block
            if block is None or not self._fits(block, by, with_legal):
                block = self._next_block(by, with_legal)
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

    def _fits(self, block: Block, by: Behaviour, with_legal: bool) -> bool:
        """Whether the block has room for one more step of the same actor and columns."""
        return (
            block.count < self.layout.capacity_steps
            and block.actor == by.actor
            and (block.legal is not None) == with_legal
            and (block.logp is None) == (by.logp is None)
            and (block.state is None) == (by.state is None)
        )

    def _next_block(self, by: Behaviour, with_legal: bool) -> Block | None:
        """A new block after the current one; None, and `lost` is set, where the memory budget is used up."""
        if self._budget is not None and not self._budget.take(block_bytes(self.layout, by)):
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
