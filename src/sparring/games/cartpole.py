"""CartPole: balance a pole on a cart (Barto, Sutton & Anderson 1983), with the physics of Gymnasium's CartPole-v1.

The rules are in docs/rules.md; `dashboard/web/games/cartpole.js` is the same game for the browser.
"""

import math

import numpy as np

from sparring.games import chance, snapshot
from sparring.games.moves import discrete_moves
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Actions, View
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

SPEC = GameSpec(
    id=GameId("cartpole"),
    turns="simultaneous",
    # Velocities have no natural bound, and a leaf has one bound for all its entries.
    seats=(
        SeatSpec(
            name="cart",
            observation=(vector("observation/state", 4),),
            action=discrete(2),
            reward_bounds=(0.0, 1.0),
        ),
    ),
    max_ticks=MAX_TICKS,
    resimulates=True,
)


class CartPole:
    """n carts. The state is float64 and the observation its float32 rounding, as in Gymnasium."""

    spec = SPEC

    def __init__(self, n: int = 1) -> None:
        self.n = n
        self._state = np.zeros((n, 4))  # position, velocity, angle, angular velocity
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)  # nothing runs before its first reset

    def reset(self, seeds: Array, which: Array) -> View:
        """Each of the four numbers starts uniform in ±0.05."""
        for k in range(4):
            start = -START_SPREAD + 2 * START_SPREAD * chance.uniform(seeds.astype(np.uint64), k)
            self._state[which, k] = start[which]
        self._tick[which] = 0
        self._ending[which] = RUNNING
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions: Actions) -> View:
        """Push each cart left (0) or right (1) for one tick, which earns 1, also when the pole falls in it."""
        running = self._ending == RUNNING
        pushes = discrete_moves(SPEC, 0, actions[0], running)
        moved = _moved(self._state, np.where(pushes == 1, FORCE, -FORCE))
        self._state[running] = moved[running]
        self._tick += running
        fallen = (np.abs(self._state[:, 0]) > MAX_POSITION) | (np.abs(self._state[:, 2]) > MAX_ANGLE)
        self._ending[running & (self._tick >= MAX_TICKS)] = TRUNCATED
        self._ending[running & fallen] = TERMINATED
        return self._view(running.astype(np.float32))

    def save(self) -> bytes:
        """All n games, exactly."""
        return snapshot.freeze(SPEC, self._arrays())

    def restore(self, state: bytes) -> None:
        """Back to what `save` gave."""
        snapshot.thaw(SPEC, state, self._arrays())

    def _arrays(self) -> dict[str, Array]:
        return {"state": self._state, "tick": self._tick, "ending": self._ending}

    def _view(self, reward: Array) -> View:
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=({"observation/state": self._state.astype(np.float32)},),
            legal=(None,),
            reward=reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, self._tick, 0).astype(np.float32)[:, None],
            tick=self._tick.copy(),
        )


def _moved(state: Array, force: Array) -> Array:
    """One explicit Euler step, each operation in Gymnasium's order so that the last bit agrees."""
    x, x_dot, theta, theta_dot = state.T
    cos, sin = np.cos(theta), np.sin(theta)
    push = (force + POLE_MOMENT * np.square(theta_dot) * sin) / TOTAL_MASS
    theta_acc = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * np.square(cos) / TOTAL_MASS))
    x_acc = push - POLE_MOMENT * theta_acc * cos / TOTAL_MASS
    return np.stack(
        (x + TICK_S * x_dot, x_dot + TICK_S * x_acc, theta + TICK_S * theta_dot, theta_dot + TICK_S * theta_acc), axis=1
    )
