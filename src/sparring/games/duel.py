"""Duel: two paddles and a ball that gets faster, both players moving at once, 30 ticks a second.

The rules are in docs/rules.md; `dashboard/web/games/duel.js` is the same game for the browser.
Every number of the state is an integer, so both give the same bytes. x grows to the right and y
downwards, both from the middle of the field; seat 0 plays on the left.
"""

import numpy as np

from sparring.games import chance, snapshot
from sparring.games.moves import discrete_moves
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


class Duel:
    """n fields. Both seats see themselves on the left."""

    spec = SPEC

    def __init__(self, n: int = 1) -> None:
        self.n = n
        self._seed = np.zeros(n, np.uint64)
        self._ball = np.zeros((n, 4), np.int64)  # x, y, vx, vy
        self._paddle = np.zeros((n, 2), np.int64)  # y of the middle
        self._pause = np.zeros(n, np.int64)
        self._score = np.zeros((n, 2), np.int64)
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)  # nothing runs before its first reset

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
        moves = np.stack([discrete_moves(SPEC, seat, actions[seat], running) for seat in (0, 1)], axis=1)
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

    def save(self) -> bytes:
        """All n games, exactly."""
        return snapshot.freeze(SPEC, self._arrays())

    def restore(self, state: bytes) -> None:
        """Back to what `save` gave."""
        snapshot.thaw(SPEC, state, self._arrays())

    def _arrays(self) -> dict[str, Array]:
        return {
            "seed": self._seed,
            "ball": self._ball,
            "paddle": self._paddle,
            "pause": self._pause,
            "score": self._score,
            "tick": self._tick,
            "ending": self._ending,
        }

    def _serve(self, which: Array) -> None:
        drawn = chance.draw(self._seed, self._score.sum(axis=1))
        side = np.where(drawn & np.uint64(1), 1, -1)
        slope = ((drawn >> np.uint64(8)) % np.uint64(SERVE_SLOPES)).astype(np.int64) - SERVE_SLOPES // 2
        served = np.stack((np.zeros_like(side), np.zeros_like(side), side * SERVE_SPEED, slope), axis=1)
        self._ball[which] = served[which]
        self._pause[which] = PAUSE_TICKS

    def _fly(self, flying: Array) -> Array:
        """Move the ball where it flies; int64 [n]: +1 a point for the left seat, -1 for the right, 0 none."""
        x, y, vx, vy = self._ball.T
        x, y = x + vx, y + vy
        bounced = np.abs(y) > BALL_LIMIT
        y = np.where(bounced, np.sign(y) * 2 * BALL_LIMIT - y, y)
        vy = np.where(bounced, -vy, vy)
        side = np.sign(vx)  # of the paddle that the ball flies towards
        reached = np.abs(x) >= PADDLE_X  # a ball turns or scores there, so it can only be on its way out
        offset = y - np.where(side < 0, self._paddle[:, 0], self._paddle[:, 1])
        hit = reached & (np.abs(offset) <= REACH)
        speed = np.minimum(np.abs(vx) + SPEED_GAIN, MAX_SPEED)
        x = np.where(hit, side * 2 * PADDLE_X - x, x)
        vx = np.where(hit, -side * speed, vx)
        vy = np.where(hit, np.sign(offset) * (np.abs(offset) * speed // REACH), vy)
        self._ball[flying] = np.stack((x, y, vx, vy), axis=1)[flying]
        return np.where(flying & reached & ~hit, side, 0)

    def _view(self, point: Array) -> View:
        over = self._ending != RUNNING
        lead = np.sign(self._score[:, 0] - self._score[:, 1]).astype(np.float32)
        outcome = np.where(over, lead, 0).astype(np.float32)
        return View(
            to_act=np.repeat(~over[:, None], 2, axis=1),
            observation=({"observation/field": self._seen(0)}, {"observation/field": self._seen(1)}),
            legal=(None, None),
            reward=np.stack((point, 0 - point), axis=1),  # 0 - x: never -0.0
            ending=np.repeat(self._ending[:, None], 2, axis=1),
            outcome=np.stack((outcome, 0 - outcome), axis=1),
            tick=self._tick.copy(),
        )

    def _seen(self, seat: int) -> Array:
        """float32 [n, 9] in ±1, every divisor but the last a power of two; seat 1 sees x mirrored."""
        other = 1 - seat
        mirror = 1 - 2 * seat
        x, y, vx, vy = self._ball.T
        waits = self._pause > 0
        seen = (
            self._paddle[:, seat] / 4096,
            self._paddle[:, other] / 4096,
            mirror * x / 8192,
            y / 4096,
            np.where(waits, 0, mirror * vx) / 1024,  # a serve is not shown before it flies
            np.where(waits, 0, vy) / 1024,
            self._pause / 16,
            self._score[:, seat] / 8,
            self._score[:, other] / 8,
        )
        return np.stack(seen, axis=1).astype(np.float32)
