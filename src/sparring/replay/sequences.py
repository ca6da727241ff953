"""Walks along the links of a table's rows: stacks of frames, windows for recurrent learners.

`columns` holds, beside the steps themselves: `next` and `previous` (rows of the same stream, NONE where there is
none), `position` (decisions since the episode began), `complete` (its successor is known) and `ending`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import RUNNING
from sparring.replay.rows import NONE
from sparring.wire.chunk import Array


def frames(columns: Mapping[str, Array], rows: Array, count: int) -> Array:
    """[count, n]: the row of each frame of a stack, oldest first; an episode's first one is repeated."""
    found = np.empty((count, len(rows)), np.int64)
    found[-1] = rows
    for place in range(count - 2, -1, -1):
        before = columns["previous"][found[place + 1]]
        found[place] = np.where(before == NONE, found[place + 1], before)
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """What a recurrent learner is fed: `length` decisions after `burn_in` ones that only warm its memory up.

    Windows of an episode begin every `length - overlap` decisions.
    """

    length: int
    burn_in: int = 0
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.length < 1 or self.burn_in < 0 or not 0 <= self.overlap < self.length:
            wrong = f"length = {self.length}, burn_in = {self.burn_in}, overlap = {self.overlap}"
            do = "Give a positive length, no negative burn-in, and an overlap below the length"
            raise ConfigError(wrong, where="replay window", do=do)


def windows(columns: Mapping[str, Array], rows: Array, window: Window) -> tuple[Array, Array]:
    """Rows and mask, both [burn_in + length, n], of the windows that `rows` stand in; True: there is such a step.

    The first burn_in places are those before the window, masked where the episode began later. Where earlier rows
    are gone from the table the window begins with the first that is left, as far as `rows` stay behind the burn-in.
    """
    first, walked = rows, np.zeros(len(rows), np.int64)
    back = columns["position"][rows] % (window.length - window.overlap) + window.burn_in
    for turn in range(int(back.max(initial=0))):
        before = columns["previous"][first]
        goes = (turn < back) & (before != NONE)
        first = np.where(goes, before, first)
        walked += goes
    short = back - walked
    begins = np.where(columns["position"][first] == 0, short, np.maximum(0, window.burn_in - walked))
    begins = np.minimum(begins, window.burn_in)
    size = window.burn_in + window.length
    found, mask = np.empty((size, len(rows)), np.int64), np.zeros((size, len(rows)), bool)
    here, there = first, np.ones(len(rows), bool)
    for place in range(size):
        begun = place >= begins
        found[place], mask[place] = here, there & begun
        after = columns["next"][here]
        goes = (columns["ending"][here] == RUNNING) & (after != NONE) & columns["complete"][after]
        there = there & (goes | ~begun)
        here = np.where(there & begun, after, here)
    return found, mask
