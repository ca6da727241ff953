"""The smallest game worth learning, for tests: walk right along a chain of five places."""

import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, View
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.wire.ids import GameId

PLACES, MAX_TICKS = 5, 20

SPEC = GameSpec(
    id=GameId("chain_game:chain"),
    turns="simultaneous",
    seats=(
        SeatSpec(
            name="walker",
            observation=(vector("observation/place", PLACES, 0.0, 1.0),),
            action=discrete(2),
            reward_bounds=(-0.1, 1.0),
        ),
    ),
    max_ticks=MAX_TICKS,
    resimulates=True,
)


class Chain:
    """Each tick costs 0.1; the last place earns 1 and ends the game. The best return is 1 - 0.3 = 0.7."""

    spec = SPEC
    searchable = True

    def __init__(self, n=1):
        self.n = n
        self._place = np.zeros(n, np.int64)
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)

    def reset(self, seeds, which):
        self._place[which] = self._tick[which] = 0
        self._ending[which] = RUNNING
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions):
        running = self._ending == RUNNING
        moved = np.clip(self._place + np.where(actions[0] == 1, 1, -1), 0, PLACES - 1)
        self._place = np.where(running, moved, self._place)
        self._tick += running
        arrived = running & (self._place == PLACES - 1)
        self._ending[running & (self._tick >= MAX_TICKS)] = TRUNCATED
        self._ending[arrived] = TERMINATED
        return self._view(np.where(arrived, 1.0, np.where(running, -0.1, 0.0)).astype(np.float32))

    def save(self):
        return np.stack((self._place, self._tick, self._ending.astype(np.int64))).tobytes()

    def restore(self, state):
        place, tick, ending = np.frombuffer(state, np.int64).reshape(3, self.n)
        self._place, self._tick, self._ending = place.copy(), tick.copy(), ending.astype(np.uint8)

    def save_rows(self):
        state = np.stack((self._place, self._tick, self._ending.astype(np.int64)), axis=1)
        return [row.tobytes() for row in state]

    def restore_rows(self, rows):
        state = np.frombuffer(b"".join(rows), np.int64).reshape(len(rows), 3)
        self._ending[:] = TERMINATED
        self._place[: len(rows)], self._tick[: len(rows)], self._ending[: len(rows)] = state.T

    def _view(self, reward):
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=({"observation/place": np.eye(PLACES, dtype=np.float32)[self._place]},),
            legal=(None,),
            reward=reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, reward, 0).astype(np.float32)[:, None],
            tick=self._tick.copy(),
        )


def chain(n=1):
    """`chain_game:chain` for the catalogue."""
    return Chain(n)
