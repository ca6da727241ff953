"""The smallest game of numbers, for tests: say the point that you see. It is cut short after some ticks."""

import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, View
from sparring.games.spec import GameSpec, Leaf, SeatSpec, vector
from sparring.wire.ids import GameId

MAX_TICKS = 8
LOW, HIGH = -2.0, 1.0

SPEC = GameSpec(
    id=GameId("aim_game:aim"),
    turns="simultaneous",
    seats=(
        SeatSpec(
            name="archer",
            observation=(vector("observation/target", 2, -1.0, 1.0),),
            action=Leaf(name="action", kind="box", shape=(2, 1), low=LOW, high=HIGH),
            reward_bounds=(-18.0, 0.0),
        ),
    ),
    max_ticks=MAX_TICKS,
    resimulates=True,
)


class Aim:
    """Each tick costs the squared distance to the target, which then moves on; a far miss ends the game."""

    spec = SPEC

    def __init__(self, n=1):
        self.n = n
        self._target = np.zeros((n, 2))
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)

    def reset(self, seeds, which):
        self._target[which] = np.stack([np.cos(seeds % 7), np.sin(seeds % 7)], 1)[which]
        self._tick[which] = 0
        self._ending[which] = RUNNING
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions):
        assert actions[0].shape == (self.n, 2, 1)
        assert actions[0].dtype == np.float32
        running = self._ending == RUNNING
        missed = ((actions[0][:, :, 0] - self._target) ** 2).sum(1)
        turned = self._target @ np.array([[0.8, 0.6], [-0.6, 0.8]])
        self._target = np.where(running[:, None], turned, self._target)
        self._tick += running
        self._ending[running & (self._tick >= MAX_TICKS)] = TRUNCATED
        self._ending[running & (missed > 9)] = TERMINATED
        return self._view(np.where(running, -missed, 0.0).astype(np.float32))

    def save(self):
        return np.concatenate((self._target.ravel(), self._tick, self._ending)).tobytes()

    def restore(self, state):
        held = np.frombuffer(state, np.float64)
        self._target = held[: 2 * self.n].reshape(self.n, 2).copy()
        self._tick, self._ending = held[2 * self.n : 3 * self.n].astype(np.int64), held[3 * self.n :].astype(np.uint8)

    def _view(self, reward):
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=({"observation/target": self._target.astype(np.float32)},),
            legal=(None,),
            reward=reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.zeros((self.n, 1), np.float32),
            tick=self._tick.copy(),
        )


def aim(n=1):
    """`aim_game:aim` for the catalogue."""
    return Aim(n)
