"""Duel: two paddles and a ball that gets faster, both players moving at once, 30 ticks a second.

The rules are in docs/rules.md; `dashboard/web/games/duel.js` is the same game for the browser.
Every number of the state is an integer, so both give the same bytes. x grows to the right and y
downwards, both from the middle of the field; seat 0 plays on the left.
"""

import numpy as np

from sparring.games.game_state import BaseGame, draw
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Actions, View
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

TICKS_PER_S = 30
MAX_TICKS = 3600
POINTS_TO_WIN = 5
PAUSE_TICKS = 15  # before each serve
HALF_HEIGHT = 3072
PADDLE_X = 4864  # of the paddles' faces, left and right of the middle
PADDLE_HALF = 512
PADDLE_SPEED = 160
PADDLE_LIMIT = HALF_HEIGHT - PADDLE_HALF
BALL_HALF = 96
BALL_LIMIT = HALF_HEIGHT - BALL_HALF
REACH = PADDLE_HALF + BALL_HALF
SERVE_SPEED, SPEED_GAIN, MAX_SPEED = 192, 24, 768
SERVE_SLOPES = 257  # a serve's vertical speed is drawn from -128 … 128

FEATURES = ("own paddle", "other paddle", "ball x", "ball y", "ball vx", "ball vy", "pause", "own score", "other score")
_SCALE = 1 / np.array([4096, 4096, 8192, 4096, 1024, 1024, 16, 8, 8])
_OTHERS = np.array([1, 0, 2, 3, 4, 5, 6, 8, 7])  # the same features as the other seat names them
_MIRROR = np.array([1, 1, -1, 1, -1, 1, 1, 1, 1])


def _seat(name: str, team: int) -> SeatSpec:
    return SeatSpec(
        name=name,
        team=team,
        observation=(vector("observation/field", len(FEATURES), -1.0, 1.0),),
        action=discrete(3),  # up, stay, down
        reward_bounds=(-1.0, 1.0),
    )


SPEC = GameSpec(
    id=GameId("duel"),
    turns="simultaneous",
    seats=(_seat("left", 0), _seat("right", 1)),
    max_ticks=MAX_TICKS,
    resimulates=True,
)


class Duel(BaseGame):
    """n fields. Both seats see themselves on the left."""

    spec = SPEC

    def __init__(self, n: int = 1) -> None:
        super().__init__(n)
        self._seed = np.zeros(n, np.uint64)
        self._ball = np.zeros((n, 4), np.int64)  # x, y, vx, vy
        self._paddle = np.zeros((n, 2), np.int64)  # y of the middle
        self._pause = np.zeros(n, np.int64)
        self._score = np.zeros((n, 2), np.int64)

    def reset(self, seeds: Array, which: Array) -> View:
        """Paddles in the middle, and the first serve drawn from the seed."""
        self._seed[which] = seeds[which]
        self._paddle[which] = 0
        self._score[which] = 0
        self._tick[which] = 0
        self._ending[which] = RUNNING
        self._serve(which)
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions: Actions) -> View:
        """Paddles move, then the ball; a miss is a point, and the next serve."""
        running = self._ending == RUNNING
        moves = np.stack([self._checked_actions(seat, actions[seat], running) for seat in (0, 1)], axis=1)
        moved = self._paddle + np.where(running[:, None], (moves - 1) * PADDLE_SPEED, 0)
        self._paddle = moved.clip(-PADDLE_LIMIT, PADDLE_LIMIT)
        flying = running & (self._pause == 0)
        self._pause[running & (self._pause > 0)] -= 1
        point = self._fly(flying)
        self._tick += running
        scored = point != 0
        self._score[:, 0] += point == 1
        self._score[:, 1] += point == -1
        won = running & (self._score.max(axis=1) >= POINTS_TO_WIN)
        self._ending[running & (self._tick >= MAX_TICKS)] = TRUNCATED
        self._ending[won] = TERMINATED
        if scored.any():
            self._serve(scored)
        return self._view(point.astype(np.float32))

    def _arrays(self) -> dict[str, Array]:
        state = {"seed": self._seed, "ball": self._ball, "paddle": self._paddle}
        return {**state, "pause": self._pause, "score": self._score, **super()._arrays()}

    def _serve(self, which: Array) -> None:
        drawn = draw(self._seed[which], self._score[which].sum(axis=1))
        side = np.where(drawn & np.uint64(1), 1, -1)
        self._ball[which, :2] = 0
        self._ball[which, 2] = side * SERVE_SPEED
        self._ball[which, 3] = ((drawn >> np.uint64(8)) % np.uint64(SERVE_SLOPES)).astype(np.int64) - SERVE_SLOPES // 2
        self._pause[which] = PAUSE_TICKS

    def _fly(self, flying: Array) -> Array:
        """Move the ball where it flies; int64 [n]: +1 a point for the left seat, -1 for the right, 0 none."""
        x, y, vx, vy = self._ball.T  # views: what is written here is written there
        x += vx * flying
        y += vy * flying
        point = np.zeros(self.n, np.int64)
        # In most ticks no ball meets anything, so both cases work on the few rows where one does.
        bounced = np.flatnonzero(np.abs(y) > BALL_LIMIT)
        if len(bounced):
            y[bounced] = np.sign(y[bounced]) * 2 * BALL_LIMIT - y[bounced]
            vy[bounced] *= -1
        reached = np.flatnonzero((np.abs(x) >= PADDLE_X) & flying)
        if len(reached):
            side = np.sign(vx[reached])  # of the paddle that the ball flies towards
            offset = y[reached] - self._paddle[reached, (side + 1) // 2]
            hit = np.abs(offset) <= REACH
            point[reached] = np.where(hit, 0, side)
            rows, side, offset = reached[hit], side[hit], offset[hit]
            speed = np.minimum(np.abs(vx[rows]) + SPEED_GAIN, MAX_SPEED)
            x[rows] = side * 2 * PADDLE_X - x[rows]
            vx[rows] = -side * speed
            vy[rows] = np.sign(offset) * (np.abs(offset) * speed // REACH)
        return point

    def _view(self, point: Array) -> View:
        over = self._ending != RUNNING
        left, right = self._seen()
        lead = np.sign(self._score[:, 0] - self._score[:, 1]).astype(np.float32)
        outcome = np.where(over, lead, 0).astype(np.float32)
        return View(
            to_act=np.repeat(~over[:, None], 2, axis=1),
            observation=({"observation/field": left}, {"observation/field": right}),
            legal=(None, None),
            reward=np.stack((point, 0 - point), axis=1),  # 0 - x: never -0.0
            ending=np.repeat(self._ending[:, None], 2, axis=1),
            outcome=np.stack((outcome, 0 - outcome), axis=1),
            tick=self._tick.copy(),
        )

    def _seen(self) -> tuple[Array, Array]:
        """float32 [n, 9] in ±1 for each seat; both see themselves on the left."""
        seen = np.empty((self.n, len(FEATURES)), np.int64)
        seen[:, :2] = self._paddle
        seen[:, 2:6] = self._ball
        seen[:, 4:6] *= self._pause[:, None] == 0  # a serve is not shown before it flies
        seen[:, 6] = self._pause
        seen[:, 7:] = self._score
        # Mirrored while they are integers, which have no -0; then exact, since each scale is a power of two.
        mirrored = seen[:, _OTHERS] * _MIRROR
        return (seen * _SCALE).astype(np.float32), (mirrored * _SCALE).astype(np.float32)
