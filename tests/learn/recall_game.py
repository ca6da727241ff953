"""The smallest game that needs a memory, for tests: a sign is shown once, and asked for some ticks later."""

import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED, View
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.wire.ids import GameId

TICKS = 5

SPEC = GameSpec(
    id=GameId("recall_game:recall"),
    turns="simultaneous",
    seats=(
        SeatSpec(
            name="witness",
            observation=(vector("observation/shown", 3, 0.0, 1.0),),
            action=discrete(2),
            reward_bounds=(-1.0, 1.0),
        ),
    ),
    max_ticks=TICKS,
    resimulates=True,
)


class Recall:
    """Left or right is shown at the first tick; naming it at the last earns 1, naming the other costs 1."""

    spec = SPEC

    def __init__(self, n=1):
        self.n = n
        self._sign = np.zeros(n, np.int64)
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)

    def reset(self, seeds, which):
        self._sign[which] = (seeds[which] >> np.uint64(40)) % np.uint64(2)
        self._tick[which] = 0
        self._ending[which] = RUNNING
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions):
        running = self._ending == RUNNING
        asked = running & (self._tick == TICKS - 1)
        right = np.where(actions[0] == self._sign, 1.0, -1.0)
        self._tick += running
        self._ending[asked] = TERMINATED
        return self._view(np.where(asked, right, 0.0).astype(np.float32))

    def save(self):
        return np.stack((self._sign, self._tick, self._ending.astype(np.int64))).tobytes()

    def restore(self, state):
        sign, tick, ending = np.frombuffer(state, np.int64).reshape(3, self.n)
        self._sign, self._tick, self._ending = sign.copy(), tick.copy(), ending.astype(np.uint8)

    def _view(self, reward):
        over = self._ending != RUNNING
        shown = np.zeros((self.n, 3), np.float32)
        shown[np.arange(self.n), self._sign] = self._tick == 0
        shown[:, 2] = self._tick == TICKS - 1
        return View(
            to_act=~over[:, None],
            observation=({"observation/shown": shown},),
            legal=(None,),
            reward=reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, reward, 0).astype(np.float32)[:, None],
            tick=self._tick.copy(),
        )


def recall(n=1):
    """`recall_game:recall` for the catalogue."""
    return Recall(n)
