"""Games without a best strategy: of n strategies each beats the next (n - 1) / 2, and loses to the others.

`cyclic:rock_paper_scissors` has three strategies, `cyclic:seven` has seven. Both players choose at once; one round.
"""

import functools

import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.games.vectorize import SingleView, VectorGame


class Cyclic:
    """One round between two players."""

    def __init__(self, name, strategies):
        seat = {
            "observation": (vector("observation/nothing", 1, 0, 1),),
            "action": discrete(strategies),
            "reward_bounds": (-1, 1),
        }
        seats = (SeatSpec(name="left", team=0, **seat), SeatSpec(name="right", team=1, **seat))
        self.strategies = strategies
        self.spec = GameSpec(id=f"cyclic:{name}", turns="simultaneous", seats=seats, max_ticks=1, resimulates=True)

    def reset(self, seed):
        return self.seen((0.0, 0.0), RUNNING)

    def step(self, actions):
        ahead = (int(actions[1]) - int(actions[0])) % self.strategies  # 1 … (n - 1) / 2: the left one wins
        result = 0.0 if ahead == 0 else 1.0 if ahead <= self.strategies // 2 else -1.0
        return self.seen((result, -result), TERMINATED)

    def seen(self, reward, ending):
        nothing = {"observation/nothing": np.zeros(1, np.float32)}
        to_act = (ending == RUNNING,) * 2
        return SingleView((nothing, nothing), to_act, reward, (ending,) * 2, outcome=reward, legal=(None, None))

    def save(self):
        return b""  # a round that has not ended has no past

    def restore(self, state):
        pass


def rock_paper_scissors(n):
    return VectorGame(functools.partial(Cyclic, "rock_paper_scissors", 3), n)


def seven(n):
    return VectorGame(functools.partial(Cyclic, "seven", 7), n)
