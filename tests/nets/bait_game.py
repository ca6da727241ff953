"""A game of two teams that earn before the end."""

import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.games.vectorize import SingleView

_SEAT = {"observation": (vector("observation/path", 4, 0, 2),), "action": discrete(2), "reward_bounds": (-1.0, 1.0)}


class Bait:
    """The first move earns 1, and 0 ends the game with it. After 1 the other seat may take 1 back, and the first seat
    then moves twice and earns 1 each time."""

    spec = GameSpec(
        id="bait",
        turns="alternating",
        seats=(SeatSpec(name="first", team=0, **_SEAT), SeatSpec(name="second", team=1, **_SEAT)),
        max_ticks=9,
        resimulates=True,
    )
    searchable = True

    def reset(self, seed):
        self.path = []
        return self.seen(0.0)

    def step(self, actions):
        at = len(self.path)
        self.path.append(int(actions[at == 1]))
        return self.seen(-float(self.path[1]) if at == 1 else 1.0)

    def seen(self, reward):
        over, at = self.path == [0] or len(self.path) == 4, len(self.path)
        path = {"observation/path": np.array([one + 1 for one in self.path] + [0] * (4 - at), np.float32)}
        acts, ending = (not over and at != 1, not over and at == 1), TERMINATED if over else RUNNING
        return SingleView((path, path), acts, (reward, -reward), (ending, ending), (0.0, 0.0), (None, None))

    def save(self):
        return bytes(self.path)

    def restore(self, state):
        self.path = list(state)
