"""A game of one team whose seats end one after another, while the others go on."""

import msgspec
import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.games.vectorize import SingleView, VectorGame
from sparring.wire.ids import GameId

ENDS = (3, 5, 9)  # the tick at which each seat ends; the last one is cut short


def _seat(name, team):
    seen = (vector("observation/clock", 3, -1.0, 10.0),)
    return SeatSpec(name=name, team=team, observation=seen, action=discrete(2), reward_bounds=(0, 10))


def _spec(name, teams):
    seats = tuple(_seat(f"seat_{place}", team) for place, team in enumerate(teams))
    return GameSpec(id=GameId(f"fading_game:{name}"), turns="simultaneous", seats=seats, max_ticks=50, resimulates=True)


class Fading:
    """A seat sees the tick, its place and the tick of its end; action 1 earns 1 + its place."""

    def __init__(self, spec):
        self.spec, self._tick, self._score = spec, 0, np.zeros(len(spec.seats))

    def reset(self, seed):
        self._tick, self._score = 0, np.zeros(len(self.spec.seats))
        return self._seen(np.zeros(len(self.spec.seats)))

    def step(self, actions):
        earned = [float(a) * (1 + s) * (self._tick < ENDS[s % 3]) for s, a in enumerate(actions)]
        self._tick += 1
        self._score = self._score + earned
        return self._seen(earned)

    def save(self):
        return msgspec.msgpack.encode((self._tick, self._score.tolist()))

    def restore(self, state):
        self._tick, score = msgspec.msgpack.decode(state)
        self._score = np.array(score)

    def _seen(self, earned):
        ends = [ENDS[s % 3] for s in range(len(self.spec.seats))]
        ended = [TRUNCATED if end == max(ENDS) else TERMINATED for end in ends]
        return SingleView(
            observation=tuple(
                {"observation/clock": np.array([min(self._tick, end), s, end], np.float32)}
                for s, end in enumerate(ends)
            ),
            to_act=tuple(self._tick < end for end in ends),
            reward=tuple(earned),
            ending=tuple(how if self._tick >= end else RUNNING for how, end in zip(ended, ends, strict=True)),
            outcome=tuple(self._score),
            legal=(None,) * len(ends),
        )


def together(n):
    return VectorGame(lambda: Fading(_spec("together", (0, 0, 0))), n)


def pairs(n):
    """Two teams of three."""
    return VectorGame(lambda: Fading(_spec("pairs", (0, 0, 0, 1, 1, 1))), n)
