"""Steps into rows: each is joined to the one before it in its stream. Compiled; `table.py` says what it means."""

import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED
from sparring.jit import compiled
from sparring.replay.rows import (
    COMPLETE,
    ENDING,
    EPISODE,
    FINAL,
    LOGP,
    NEXT,
    NONE,
    POSITION,
    PREVIOUS,
    REWARD,
    SOURCE,
    UPLOADER,
    VERSION,
    WAITS,
)
from sparring.wire.chunk import Array


@compiled
def forget(words: Array, flags: Array, tail: Array, rows: Array, frames: int) -> Array:
    """Take `rows` out of every chain. Answers which rows can be drawn no longer, some perhaps twice."""
    gone = np.empty(len(rows) * (1 + max(1, frames)), np.int64)
    count = 0
    for row in rows:
        gone[count] = row
        count += 1
        before, after, waits = words[row, PREVIOUS], words[row, NEXT], words[row, WAITS]
        if before != NONE:  # only where rows do not go in the order in which they came
            words[before, NEXT] = NONE
            flags[before, COMPLETE] = 0
            gone[count] = before
            count += 1
        if after != NONE:
            words[after, PREVIOUS] = NONE
            for _ in range(frames - 1):  # their stacks lack a frame now
                if after != NONE:
                    gone[count] = after
                    count += 1
                    after = words[after, NEXT]
        if waits != NONE:
            tail[waits] = NONE
        words[row, NEXT] = words[row, PREVIOUS] = words[row, WAITS] = NONE
        flags[row, COMPLETE] = flags[row, FINAL] = 0
    return gone[:count]


@compiled
def link(  # noqa: PLR0913  (a table's memory, and what came)
    words: Array,
    floats: Array,
    flags: Array,
    tail: Array,
    rows: Array,
    finals: Array,
    stream: Array,
    reward: Array,
    ending: Array,
    logp: Array,
    given: Array,
    about: tuple[int, int, int, int, int],
    frames: int,
) -> tuple[Array, int]:
    """Join the steps in `rows`, in their order. Answers which rows can be drawn now, and how many episodes began.

    `finals`: for each step the row of the view after it, or NONE; empty: there are none. `logp` and `given` (the
    positions) may be empty. `about`: the first free number of an episode, the episode of all or NONE, uploader,
    version, source.
    """
    ready, count, begun = np.empty(2 * len(rows), np.int64), 0, 0
    for i in range(len(rows)):
        row, here = rows[i], stream[i]
        before = tail[here]
        position, episode = 0, about[0] + begun
        if before == NONE:
            begun += 1
        else:
            words[before, WAITS], words[before, NEXT] = NONE, row
            position = words[before, POSITION] + 1
            episode = _number(words, before)
            count = _complete(words, flags, before, frames, ready, count)
        if len(given):
            position = given[i]
        _write(words, flags, row, before, position, episode if about[1] == NONE else about[1], about)
        floats[row, REWARD], flags[row, ENDING] = reward[i], ending[i]
        floats[row, LOGP] = logp[i] if len(logp) else np.nan
        final = finals[i] if len(finals) else NONE
        if ending[i] == RUNNING and final == NONE:
            words[row, WAITS], tail[here] = here, row
            continue
        tail[here] = NONE
        if final != NONE:
            words[row, NEXT] = final
            words[final, PREVIOUS], words[final, POSITION] = row, position + 1
            flags[final, FINAL], flags[final, ENDING] = 1, RUNNING
        if final != NONE or ending[i] == TERMINATED:
            count = _complete(words, flags, row, frames, ready, count)
    return ready[:count], begun


@compiled
def _write(
    words: Array,
    flags: Array,
    row: int,
    before: int,
    position: int,
    episode: int,
    about: tuple[int, int, int, int, int],
) -> None:
    """What a step is, beside what was seen and done."""
    words[row, EPISODE] = np.int32(episode & 0xFFFFFFFF)
    words[row, EPISODE + 1] = np.int32(episode >> 32)
    words[row, PREVIOUS], words[row, POSITION] = before, position
    words[row, UPLOADER], words[row, VERSION], flags[row, SOURCE] = about[2], about[3], about[4]


@compiled
def _number(words: Array, row: int) -> int:
    """The episode of a row: two words, the lower first."""
    return int((np.int64(words[row, EPISODE + 1]) << 32) | (np.int64(words[row, EPISODE]) & 0xFFFFFFFF))


@compiled
def _complete(words: Array, flags: Array, row: int, frames: int, ready: Array, count: int) -> int:
    """Its successor is known: it may be walked over, and drawn if all frames of its stack are there."""
    flags[row, COMPLETE] = 1
    here = row
    for _ in range(frames - 1):
        before = words[here, PREVIOUS]
        if before == NONE:
            if words[here, POSITION] != 0:
                return count
            break
        here = before
    ready[count] = row
    return count + 1
