"""The smallest game of numbers worth learning, for tests: step onto a point in the plane."""

import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED, View
from sparring.games.spec import GameSpec, Leaf, SeatSpec, vector
from sparring.wire.ids import GameId

SPEC = GameSpec(
    id=GameId("reach_game:reach"),
    turns="simultaneous",
    seats=(
        SeatSpec(
            name="walker",
            observation=(vector("observation/way", 2, -1.0, 1.0),),
            action=Leaf(name="action", kind="box", shape=(2,), low=-1.0, high=3.0),
            reward_bounds=(-8.0, 0.0),
        ),
    ),
    max_ticks=1,
    resimulates=True,
)


class Reach:
    """One step, which costs how far it ends from 1 + the way shown, in both directions together."""

    spec = SPEC

    def __init__(self, n=1):
        self.n = n
        self._way = np.zeros((n, 2), np.float32)
        self._ending = np.full(n, TERMINATED, np.uint8)

    def reset(self, seeds, which):
        for game in np.flatnonzero(which):
            self._way[game] = np.random.default_rng(int(seeds[game])).uniform(-1, 1, 2)
        self._ending[which] = RUNNING
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions):
        running = self._ending == RUNNING
        missed = np.abs(actions[0] - 1 - self._way).sum(axis=1)
        self._ending[running] = TERMINATED
        return self._view(np.where(running, -missed, 0.0).astype(np.float32))

    def save(self):
        return self._way.tobytes() + self._ending.tobytes()

    def restore(self, state):
        self._way = np.frombuffer(state[: 8 * self.n], np.float32).reshape(self.n, 2).copy()
        self._ending = np.frombuffer(state[8 * self.n :], np.uint8).copy()

    def _view(self, reward):
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=({"observation/way": self._way.copy()},),
            legal=(None,),
            reward=reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, reward, 0).astype(np.float32)[:, None],
            tick=over.astype(np.int64),
        )


def reach(n=1):
    """`reach_game:reach` for the catalogue."""
    return Reach(n)
