"""Connect Four: two players, seven columns of six; four in a line win.

The rules are in docs/rules.md; `dashboard/web/games/connect_four.js` is the same game for the browser.
A player's stones are one uint64: bit 7·column + height, with an empty bit above each column so that
no line runs on into the next (John Tromp's layout).
"""

import numpy as np

from sparring.games.game_state import BaseGame
from sparring.games.protocol import RUNNING, TERMINATED, Actions, View
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

COLUMNS, ROWS = 7, 6
_HEIGHT = ROWS + 1
_LINES = (1, _HEIGHT, _HEIGHT - 1, _HEIGHT + 1)  # one up, one right, one right and down, one right and up
_BOTTOM = np.uint64(1) << np.arange(0, COLUMNS * _HEIGHT, _HEIGHT, dtype=np.uint64)
_COLUMN = _BOTTOM * np.uint64((1 << ROWS) - 1)
_TOP = _BOTTOM << np.uint64(ROWS - 1)
_CELLS = np.array(  # of the bit in each cell of the board, the top row first
    [[_HEIGHT * column + height for column in range(COLUMNS)] for height in reversed(range(ROWS))], np.uint64
)
_PLACES = _CELLS.astype(np.intp)
_BOARD = Leaf(name="observation/board", kind="image", shape=(2, ROWS, COLUMNS), dtype="uint8", low=0.0, high=1.0)


def _seat(name: str, team: int) -> SeatSpec:
    return SeatSpec(name=name, team=team, observation=(_BOARD,), action=discrete(COLUMNS), reward_bounds=(-1.0, 1.0))


SPEC = GameSpec(
    id=GameId("connect-four"),
    turns="alternating",
    seats=(_seat("first", 0), _seat("second", 1)),
    max_ticks=COLUMNS * ROWS,
    resimulates=True,
)


class ConnectFour(BaseGame):
    """n boards. Each seat sees its own stones in plane 0 and the other's in plane 1."""

    spec = SPEC

    def __init__(self, n: int = 1) -> None:
        super().__init__(n)
        self._stones = np.zeros((n, 2), np.uint64)
        self._outcome = np.zeros(n, np.float32)  # of seat 0

    def reset(self, seeds: Array, which: Array) -> View:
        """An empty board; there is no chance in this game."""
        self._stones[which] = 0
        self._tick[which] = 0
        self._ending[which] = RUNNING
        self._outcome[which] = 0.0
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions: Actions) -> View:
        """The player to move drops a stone into a column."""
        running = self._ending == RUNNING
        second = self._tick % 2 == 1
        legal = self._legal()
        moves = self._checked_actions(0, actions[0], running & ~second, legal)
        moves = np.where(second, self._checked_actions(1, actions[1], running & second, legal), moves)
        rows, mover = np.flatnonzero(running), second.astype(np.int64)
        full = self._stones[:, 0] | self._stones[:, 1]
        stone = (full + _BOTTOM[moves]) & _COLUMN[moves]  # the carry stops at the lowest empty cell
        self._stones[rows, mover[rows]] |= stone[rows]
        self._tick += running
        won = running & has_four(self._stones[np.arange(self.n), mover])
        self._outcome[won] = np.where(second, -1.0, 1.0)[won]
        self._ending[won | (running & (self._tick == COLUMNS * ROWS))] = TERMINATED
        return self._view(np.where(won, self._outcome, 0).astype(np.float32))

    def _arrays(self) -> dict[str, Array]:
        return {"stones": self._stones, "outcome": self._outcome, **super()._arrays()}

    def _legal(self) -> Array:
        full = self._stones[:, 0] | self._stones[:, 1]
        return np.asarray((full[:, None] & _TOP) == 0)

    def _view(self, reward: Array) -> View:
        running = self._ending == RUNNING
        to_act = np.zeros((self.n, 2), bool)
        to_act[np.arange(self.n), self._tick % 2] = running
        legal = self._legal()
        bits = np.unpackbits(self._stones.astype("<u8").view(np.uint8).reshape(self.n, 2, 8), axis=2, bitorder="little")
        planes = bits.take(_PLACES, axis=2)  # rows of memory are boards, as bits[:, :, _PLACES] would not have it
        return View(
            to_act=to_act,
            observation=(
                {"observation/board": planes},
                {"observation/board": np.ascontiguousarray(planes[:, ::-1])},
            ),
            # All true where a seat is not asked, so that a softmax over it stays finite.
            legal=(legal | ~to_act[:, :1], legal | ~to_act[:, 1:]),
            reward=np.stack((reward, 0 - reward), axis=1),
            ending=np.repeat(self._ending[:, None], 2, axis=1),
            outcome=np.stack((self._outcome, 0 - self._outcome), axis=1),  # 0 - x: never -0.0
            tick=self._tick.copy(),
        )


def has_four(stones: Array) -> Array:
    """bool: whether the stones (uint64) hold four in a line; two shifts and two ands for each direction."""
    found = np.zeros(stones.shape, bool)
    for line in _LINES:
        pairs = stones & (stones >> np.uint64(line))
        found |= (pairs & (pairs >> np.uint64(2 * line))) != 0
    return found


def stones_of(board: Array) -> Array:
    """uint64 [n, 2]: own and theirs, from boards [n, 2, 6, 7]."""
    return np.asarray((board.astype(np.uint64) << _CELLS).sum(axis=(2, 3), dtype=np.uint64))


def dropped(stones: Array, column: int) -> Array:
    """uint64 [n]: the one stone that a drop into `column` would add to boards [n, 2]; 0 where it is full."""
    return np.asarray(((stones[:, 0] | stones[:, 1]) + _BOTTOM[column]) & _COLUMN[column])
