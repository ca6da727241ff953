"""Connect Four by alpha-beta search on bitboards, a player to measure models against; never trained on.

A position is worth, for the player to move, the sum over all 69 lines of four cells: a line that holds stones of one
player alone counts 1, 4 or 16 for one, two or three stones, positive for the player to move. A win counts 10,000 and
one more for each ply that is left, so that it is made early. Of equal moves one is drawn. `AlphaBeta` is a Forward:
`evaluate` lets it meet a model in drawn openings, from both sides; `standard_error` is that of the score.
"""

import numpy as np

from sparring.acting.evaluate import Evaluation
from sparring.games.connect_four import COLUMNS, ROWS, stones_of
from sparring.games.protocol import Columns
from sparring.jit import compiled
from sparring.wire.chunk import Array
from sparring.wire.network import Head, Input, NetworkSpec

WIN = 10_000
HEIGHT = ROWS + 1
ORDER = np.array([3, 2, 4, 1, 5, 0, 6])  # the middle first: more is cut off
FULL_COLUMN = np.array([((1 << ROWS) - 1) << (HEIGHT * column) for column in range(COLUMNS)])
BOTTOM = np.array([1 << (HEIGHT * column) for column in range(COLUMNS)])


def _lines() -> Array:
    found = []
    for column in range(COLUMNS):
        for row in range(ROWS):
            for right, up in ((0, 1), (1, 0), (1, 1), (1, -1)):
                if column + 3 * right < COLUMNS and 0 <= row + 3 * up < ROWS:
                    found.append(sum(1 << (HEIGHT * (column + k * right) + row + k * up) for k in range(4)))
    return np.array(found)


LINES = _lines()


@compiled
def has_line(stones: int) -> bool:
    for shift in (1, HEIGHT, HEIGHT - 1, HEIGHT + 1):
        pairs = stones & (stones >> shift)
        if pairs & (pairs >> (2 * shift)):
            return True
    return False


@compiled
def worth(own: int, other: int, lines: Array) -> int:
    total = 0
    for line in lines:
        mine, theirs = own & line, other & line
        if mine and not theirs:
            stones = mine
        elif theirs and not mine:
            stones = theirs
        else:
            continue
        count = -1
        while stones:
            stones &= stones - 1
            count += 1
        total += (1 << (2 * count)) if mine else -(1 << (2 * count))
    return total


@compiled
def negamax(own: int, other: int, depth: int, alpha: int, beta: int, tables: tuple[Array, Array, Array, Array]) -> int:
    """What the position is worth for `own`, who is to move, after so many plies."""
    lines, order, columns, bottom = tables
    if depth == 0:
        return worth(own, other, lines)
    full, best = own | other, -WIN * 2
    for column in order:
        stone = (full + bottom[column]) & columns[column]
        if not stone:
            continue
        won = has_line(own | stone)
        value = WIN + depth if won else -negamax(other, own | stone, depth - 1, -beta, -alpha, tables)
        if value > best:
            best = value
        if best > alpha:
            alpha = best
        if alpha >= beta:
            break
    return 0 if best == -WIN * 2 else best  # the board is full


@compiled
def move_values(stones: Array, depth: int, tables: tuple[Array, Array, Array, Array]) -> Array:
    """int64 [n, columns]: what each of the best moves is worth, exactly, and of the others something less; very little
    where the column is full."""
    values = np.full((len(stones), 7), -WIN * 4)
    for row in range(len(stones)):
        own, other, best = stones[row, 0], stones[row, 1], -WIN * 2
        for column in tables[1]:
            stone = ((own | other) + tables[3][column]) & tables[2][column]
            if stone and has_line(own | stone):
                values[row, column] = WIN + depth
            elif stone:
                values[row, column] = -negamax(other, own | stone, depth - 1, -WIN * 2, 1 - best, tables)
            best = max(best, values[row, column])
    return values


class AlphaBeta:
    """Looks `depth` plies ahead, its own move included."""

    def __init__(self, depth: int, seed: int = 0) -> None:
        self.spec = NetworkSpec((Input("observation/board", (2, ROWS, COLUMNS)),), (Head("logits", COLUMNS),), ())
        self._depth, self._rng = depth, np.random.default_rng([seed, 0xAB])

    def values(self, boards: Array) -> Array:
        """int64 [n, columns] of boards [n, 2, 6, 7] as the player to move sees them."""
        stones = stones_of(boards).astype(np.int64)
        return move_values(stones, self._depth, (LINES, ORDER, FULL_COLUMN, BOTTOM))

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        """ "logits": the values, and less than a point of chance."""
        values = self.values(observation["observation/board"])
        return {"logits": (values + self._rng.random(values.shape)).astype(np.float32)}


def standard_error(played: Evaluation) -> float:
    """Of the score; the two games of one opening count as one result."""
    assert played.beaten is not None
    pairs = played.beaten[: len(played.beaten) // 2 * 2].reshape(-1, 2).mean(axis=1)
    return float(pairs.std() / max(len(pairs), 1) ** 0.5)
