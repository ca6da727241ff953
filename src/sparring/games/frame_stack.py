"""The last frames of each stream in a row, for games whose spec says frame_stack.

Single frames travel and are stored; a player sees stacks, oldest frame first. At the start of an episode its first
frame is repeated. Replay makes the same stacks of what it stored (replay/gather.py), the gateway of what it is sent.
"""

import numpy as np

from sparring.games.protocol import Columns
from sparring.games.spec import SeatSpec
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree


class FrameStacks:
    """Of a fixed number of streams, each one seat of one game. What it gives belongs to the caller."""

    def __init__(self, seat: SeatSpec, frames: int, streams: int) -> None:
        self.frames = frames
        self._leaves = {leaf.name: leaf for leaf in seat.observation}
        self._fresh = np.ones(streams, bool)  # the next frame is an episode's first
        self._held: Columns = {
            leaf.name: np.zeros((streams, frames, *leaf.shape), leaf.dtype)
            for leaf in (seat.observation if frames > 1 else ())
        }

    def begin(self, which: Array) -> None:
        """In the streams of `which` (bool [streams], or places) an episode begins: what they held is forgotten."""
        self._fresh[which] = True

    def push(self, seen: Columns, rows: Array | None = None) -> Columns:
        """Stacks that end in the frames `seen`, one for each stream of `rows` (all where None), which are kept."""
        if self.frames == 1:
            return seen
        stacks = self._ending_in(seen, rows)
        places = slice(None) if rows is None else rows
        for name, stack in stacks.items():
            self._held[name][places] = stack
        self._fresh[places] = False
        return self._shaped(stacks)

    def peek(self, seen: Columns, rows: Array | None = None) -> Columns:
        """What `push` would give; nothing is kept."""
        return seen if self.frames == 1 else self._shaped(self._ending_in(seen, rows))

    def newest(self, stacks: Columns) -> Columns:
        """The last frame of each stack [n, …], as the game showed it."""
        if self.frames == 1:
            return stacks
        return {
            name: stack.reshape(len(stack), self.frames, *self._leaves[name].shape)[:, -1]
            for name, stack in stacks.items()
        }

    def save(self) -> Tree:
        """For a checkpoint."""
        return {"fresh": self._fresh.copy(), "held": {name: held.copy() for name, held in self._held.items()}}

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        self._fresh = state["fresh"].copy()
        self._held = {name: held.copy() for name, held in state["held"].items()}

    def _ending_in(self, seen: Columns, rows: Array | None) -> Columns:
        """[n, frames, *shape] of each leaf."""
        fresh = np.flatnonzero(self._fresh if rows is None else self._fresh[rows])
        stacks: Columns = {}
        for name, frame in seen.items():
            held = self._held[name] if rows is None else self._held[name][rows]
            stack = np.empty_like(held)
            stack[:, :-1], stack[:, -1] = held[:, 1:], frame
            stack[fresh] = frame[fresh, None]
            stacks[name] = stack
        return stacks

    def _shaped(self, stacks: Columns) -> Columns:
        return {
            name: stack.reshape(len(stack), *self._leaves[name].stacked(self.frames)) for name, stack in stacks.items()
        }
