"""CartPole: balance a pole on a cart (Barto, Sutton & Anderson 1983), with the physics of Gymnasium's CartPole-v1.

The rules are in docs/rules.md; `dashboard/web/games/cartpole.js` is the same game for the browser.
"""

import math

import numpy as np

from sparring.games.game_state import OneSeatGame, uniform
from sparring.games.protocol import RUNNING, Actions, Columns, View
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

GRAVITY = 9.8
CART_MASS, POLE_MASS = 1.0, 0.1
TOTAL_MASS = POLE_MASS + CART_MASS
HALF_LENGTH = 0.5
POLE_MOMENT = POLE_MASS * HALF_LENGTH
FORCE = 10.0
TICK_S = 0.02
MAX_ANGLE = 12 * 2 * math.pi / 360
MAX_POSITION = 2.4
MAX_TICKS = 500
START_SPREAD = 0.05
_TAYLOR = np.array(  # of sin and cos, from the lowest power on; [6, 2, 1]
    [
        [[-1 / 6], [-1 / 2]],
        [[1 / 120], [1 / 24]],
        [[-1 / 5040], [-1 / 720]],
        [[1 / 362880], [1 / 40320]],
        [[-1 / 39916800], [-1 / 3628800]],
        [[1 / 6227020800], [1 / 479001600]],
    ]
)

SPEC = GameSpec(
    id=GameId("cartpole"),
    turns="simultaneous",
    # Velocities have no natural bound, and a leaf has one bound for all its entries.
    seats=(
        SeatSpec(
            name="cart", observation=(vector("observation/state", 4),), action=discrete(2), reward_bounds=(0.0, 1.0)
        ),
    ),
    max_ticks=MAX_TICKS,
    resimulates=True,
)


class CartPole(OneSeatGame):
    """n carts. The state is float64 and the observation its float32 rounding, as in Gymnasium."""

    spec = SPEC
    searchable = True

    def __init__(self, n: int = 1) -> None:
        super().__init__(n)
        self._state = np.zeros((n, 4))  # position, velocity, angle, angular velocity

    def reset(self, seeds: Array, which: Array) -> View:
        """Each of the four numbers starts uniform in ±0.05."""
        for k in range(4):
            start = -START_SPREAD + 2 * START_SPREAD * uniform(seeds.astype(np.uint64), k)
            self._state[which, k] = start[which]
        self._start(which)
        return self._view(self._observation())

    def step(self, actions: Actions) -> View:
        """Push each cart left (0) or right (1) for one tick, which earns 1, also when the pole falls in it."""
        running = self._ending == RUNNING
        pushes = self._checked_actions(0, actions[0], running)
        moved = _moved(self._state, (2 * pushes - 1) * FORCE)
        self._state = np.where(running[:, None], moved, self._state)
        fallen = (np.abs(self._state[:, 0]) > MAX_POSITION) | (np.abs(self._state[:, 2]) > MAX_ANGLE)
        return self._view(self._observation(), self._advance(running, running, fallen))

    def _arrays(self) -> dict[str, Array]:
        return {"state": self._state, **super()._arrays()}

    def _observation(self) -> Columns:
        return {"observation/state": self._state.astype(np.float32)}


def _moved(state: Array, force: Array) -> Array:
    """One explicit Euler step, in the order of operations of docs/rules.md: every machine agrees bit for bit."""
    x, x_dot, theta, theta_dot = state.T
    sin, cos = sin_cos(theta)
    push = (force + POLE_MOMENT * (theta_dot * theta_dot) * sin) / TOTAL_MASS
    theta_acc = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS))
    x_acc = push - POLE_MOMENT * theta_acc * cos / TOTAL_MASS
    moved = np.empty_like(state)
    moved[:, 0] = x + TICK_S * x_dot
    moved[:, 1] = x_dot + TICK_S * x_acc
    moved[:, 2] = theta + TICK_S * theta_dot
    moved[:, 3] = theta_dot + TICK_S * theta_acc
    return moved


def sin_cos(angle: Array) -> tuple[Array, Array]:
    """Taylor's series up to the 13th and 12th power: within the last bit of the true value for |angle| ≤ 0.25.

    Not np.sin: libraries and browsers differ in its last bit, which a falling pole multiplies a
    hundredfold each second, and a recorded episode could not be run again on another machine.
    """
    square = angle * angle
    sums = np.empty((2, len(angle)))
    sums[:] = _TAYLOR[-1]
    for coefficients in _TAYLOR[-2::-1]:
        sums *= square
        sums += coefficients
    sums *= square
    return angle + angle * sums[0], 1.0 + sums[1]
