"""Connect Four: two players, seven columns of six; four in a line win.

The rules are in docs/rules.md; `dashboard/web/games/connect_four.js` is the same game for the browser.
A player's stones are one uint64: bit 7·column + height, with an empty bit above each column so that
no line runs on into the next (John Tromp's layout).
"""

from collections.abc import Sequence

import numpy as np

from sparring.errors import Refused
from sparring.games.game_state import BaseGame
from sparring.games.protocol import RUNNING, TERMINATED, Actions, Columns, View
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

COLUMNS, ROWS = 7, 6
_HEIGHT = ROWS + 1
_LINES = (1, _HEIGHT, _HEIGHT - 1, _HEIGHT + 1)  # one up, one right, one right and down, one right and up
_SIZE = COLUMNS * ROWS
_BOTTOM = np.uint64(1) << np.arange(0, COLUMNS * _HEIGHT, _HEIGHT, dtype=np.uint64)
_COLUMN = _BOTTOM * np.uint64((1 << ROWS) - 1)
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
    """n boards. Each seat sees its own stones in plane 0 and the other's in plane 1.

    The boards that seat 0 sees, and how many stones a column has, follow from the stones; they are kept beside them, as
    a move changes one cell of each.
    """

    spec = SPEC
    searchable = True

    def __init__(self, n: int = 1) -> None:
        super().__init__(n)
        self._stones = np.zeros((n, 2), np.uint64)
        self._boards = np.zeros((n, 2, ROWS, COLUMNS), np.uint8)
        self._heights = np.zeros((n, COLUMNS), np.uint8)
        self._outcome = np.zeros(n, np.float32)  # of seat 0

    def reset(self, seeds: Array, which: Array) -> View:
        """An empty board; there is no chance in this game."""
        rows = np.flatnonzero(which)
        for array in (self._stones, self._boards, self._heights, self._tick, self._outcome):
            array[rows] = 0
        self._ending[rows] = RUNNING
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions: Actions) -> View:
        """The player to move drops a stone into a column."""
        running = self._ending == RUNNING
        second = self._tick % 2 == 1
        legal = self._legal()
        moves = self._checked_actions(0, actions[0], running & ~second, legal)
        moves = np.where(second, self._checked_actions(1, actions[1], running & second, legal), moves)
        rows = np.flatnonzero(running)
        mover, column = second[rows].astype(np.int64), moves[rows]
        place = rows * COLUMNS + column
        height = self._heights.reshape(-1)[place].astype(np.int64)
        self._heights.reshape(-1)[place] += 1
        self._boards.reshape(-1)[(2 * rows + mover) * _SIZE + (ROWS - 1 - height) * COLUMNS + column] = 1
        own = self._stones.reshape(-1)[2 * rows + mover] | np.uint64(1) << (_HEIGHT * column + height).astype(np.uint64)
        self._stones.reshape(-1)[2 * rows + mover] = own
        self._tick += running
        won = np.zeros(self.n, bool)
        won[rows] = has_four(own)
        self._outcome[won] = np.where(second[won], -1.0, 1.0)
        self._ending[won | (running & (self._tick == _SIZE))] = TERMINATED
        return self._view(np.where(won, self._outcome, np.float32(0)))

    def restore(self, state: bytes) -> None:
        super().restore(state)
        self._read_stones()

    def restore_rows(self, rows: Sequence[bytes]) -> None:
        super().restore_rows(rows)
        self._read_stones()

    def _read_stones(self) -> None:
        """Boards and heights as the stones say."""
        bits = np.unpackbits(self._stones.astype("<u8").view(np.uint8).reshape(self.n, 2, 8), axis=2, bitorder="little")
        self._boards = bits[:, :, _PLACES].copy()
        self._heights = self._boards.sum(axis=(1, 2), dtype=np.uint8)

    def row_of(self, seat: int, observation: Columns) -> bytes:
        """The game in which that seat is to move and sees that board; Refused where there is none."""
        board = np.asarray(observation[_BOARD.name])
        stones = stones_of(board[None])[0]
        own, other = board.sum(axis=(1, 2), dtype=int).tolist()
        full = stones[0] | stones[1]
        hangs = bool(full & (full + _BOTTOM.sum(dtype=np.uint64)))  # a column that is filled up carries into one bit
        ended = bool(has_four(stones).any()) or own + other == COLUMNS * ROWS
        if hangs or ended or own + seat != other or stones[0] & stones[1]:
            wrong = f"no running game shows this board to seat {seat} when it is to move"
            raise Refused(wrong, where=SPEC.id, do="Search where a seat decides", field="observation")
        one = ConnectFour(1)
        one._stones[0] = stones if seat == 0 else stones[::-1]
        one._tick[0], one._ending[0] = own + other, RUNNING
        return one.save_rows()[0]

    def move_outcomes(self) -> Array:
        """int8 [n, columns]: 1 where a stone of who is to move wins, -1 where the other's next stone could win then."""
        second, every = self._tick % 2, np.arange(self.n)
        own, other = self._stones[every, second, None], self._stones[every, 1 - second, None]
        stones = (own | other) + _BOTTOM & _COLUMN  # 0 where the column is full
        above = stones << np.uint64(1) & _COLUMN
        wins, threats = has_four(own | stones), has_four(other | stones)
        elsewhere = threats.sum(axis=1, keepdims=True) > threats
        return np.where(wins, 1, np.where(elsewhere | has_four(other | above), -1, 0)).astype(np.int8)

    def _arrays(self) -> dict[str, Array]:
        return {"stones": self._stones, "outcome": self._outcome, **super()._arrays()}

    def _legal(self) -> Array:
        return np.asarray(self._heights < ROWS)

    def _view(self, reward: Array) -> View:
        running, second = self._ending == RUNNING, self._tick % 2 == 1
        to_act = np.stack((running & ~second, running & second), axis=1)
        legal = self._legal()
        return View(
            to_act=to_act,
            observation=(
                {"observation/board": self._boards.copy()},
                {"observation/board": self._boards[:, ::-1].copy()},
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
