"""Pictures of games, for videos: those of the libraries as they draw them, those of the built-in games drawn here."""

from collections.abc import Callable

import numpy as np

from sparring.errors import ConfigError
from sparring.games import atari, cartpole, duel
from sparring.games.catalogue import open_game
from sparring.games.connect_four import COLUMNS, ROWS
from sparring.games.protocol import Game, View
from sparring.wire.chunk import Array

Draw = Callable[[View], Array]  # what the first game shows → uint8 [height, width, 3]

FRAMES_PER_S = 30.0  # where a game does not say
PAPER, INK, FIRST, SECOND = (245, 245, 245), (40, 40, 40), (228, 87, 86), (242, 183, 1)
CELL = 48  # pixels of a cell of Connect Four
FIELD_UNIT = 32  # of Duel's units in a pixel


def open_rendered(game_id: str) -> tuple[Game, Draw, float]:
    """One game, how it is drawn, and how many pictures make a second; ConfigError where it cannot be drawn."""
    game = open_game(game_id, rendered=True)
    if game_id.startswith("atari:"):
        return game, _screen, 60 / atari.FRAMES_A_TICK
    if game_id in _DRAWN:
        return game, *_DRAWN[game_id]
    render = getattr(game, "render", lambda: (None, 0.0))

    def draw(view: View) -> Array:
        picture, _ = render()
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim != 3:
            do = 'Use an environment with render_mode="rgb_array", atari:GAME, cartpole, connect-four or duel'
            raise ConfigError("it draws no pictures", where=f"game {game_id!r}", do=do)
        return picture

    draw(game.reset(np.zeros(1, np.uint64), np.ones(1, bool)))
    return game, draw, render()[1] or FRAMES_PER_S


def _screen(view: View) -> Array:
    """Atari's screen as the player sees it, each pixel as four by four."""
    grey = view.observation[0][atari.SCREEN][0].repeat(4, axis=0).repeat(4, axis=1)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _cartpole(view: View) -> Array:
    position, _, angle, _ = view.observation[0]["observation/state"][0]
    picture = _paper(200, 480)
    y, x = np.mgrid[:200, :480]
    scale = 480 / (2 * cartpole.MAX_POSITION + 1)
    at, track, length = 240 + position * scale, 160, 2 * cartpole.HALF_LENGTH * scale
    picture[track : track + 2] = INK
    picture[(abs(x - at) < 26) & (abs(y - track) < 12)] = INK
    along, across = np.array([np.sin(angle), -np.cos(angle)]), np.array([np.cos(angle), np.sin(angle)])
    dx, dy = x - at, y - track + 12
    up = dx * along[0] + dy * along[1]
    picture[(up >= 0) & (up <= length) & (abs(dx * across[0] + dy * across[1]) < 4)] = FIRST
    return picture


def _connect_four(view: View) -> Array:
    """Seat 0's stones are red."""
    board = view.observation[0]["observation/board"][0]
    y, x = np.mgrid[:CELL, :CELL]
    disc = np.hypot(x - CELL / 2 + 0.5, y - CELL / 2 + 0.5) < CELL * 0.42
    picture = _paper(ROWS * CELL, COLUMNS * CELL, (47, 93, 163))
    for row in range(ROWS):
        for column in range(COLUMNS):
            colour = FIRST if board[0, row, column] else SECOND if board[1, row, column] else PAPER
            picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL][disc] = colour
    return picture


def _duel(view: View) -> Array:
    """Seat 0 plays on the left."""
    own, other, ball_x, ball_y = view.observation[0]["observation/field"][0][:4] * (4096, 4096, 8192, 4096)
    width, height = 2 * (duel.PADDLE_X + 2 * duel.BALL_HALF), 2 * duel.HALF_HEIGHT
    picture = _paper(height // FIELD_UNIT, width // FIELD_UNIT, INK)

    def fill(x: float, y: float, half_x: float, half_y: float, colour: tuple[int, int, int]) -> None:
        left, top = x + width / 2 - half_x, y + height / 2 - half_y
        ends = np.clip(np.array([left, top, left + 2 * half_x, top + 2 * half_y]) / FIELD_UNIT, 0, None).astype(int)
        picture[ends[1] : ends[3], ends[0] : ends[2]] = colour

    fill(-duel.PADDLE_X - duel.BALL_HALF, own, duel.BALL_HALF, duel.PADDLE_HALF, FIRST)
    fill(duel.PADDLE_X + duel.BALL_HALF, other, duel.BALL_HALF, duel.PADDLE_HALF, SECOND)
    fill(ball_x, ball_y, duel.BALL_HALF, duel.BALL_HALF, PAPER)
    return picture


def _paper(height: int, width: int, colour: tuple[int, int, int] = PAPER) -> Array:
    return np.full((height, width, 3), colour, np.uint8)


_DRAWN: dict[str, tuple[Draw, float]] = {
    "cartpole": (_cartpole, 1 / cartpole.TICK_S),
    "connect-four": (_connect_four, 1.0),
    "duel": (_duel, float(duel.TICKS_PER_S)),
}
