"""Games for what the chain cannot show: a memory, numbers or several choices at once as actions, one that breaks."""

import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED, View
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete, vector
from sparring.wire.ids import GameId


class _Small:
    """n games of one seat and `ticks` ticks; a kind says what is seen and what is earned."""

    def __init__(self, n, spec, ticks):
        self.n, self.spec, self._ticks = n, spec, ticks
        self._cue = np.zeros(n, np.float32)
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)

    def reset(self, seeds, which):
        drawn = np.array([np.random.default_rng(seed).choice([-1.0, 1.0]) for seed in seeds], np.float32)
        self._cue[which], self._tick[which], self._ending[which] = drawn[which], 0, RUNNING
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions):
        running = self._ending == RUNNING
        earned = self._earned(actions[0]) * running
        self._tick += running
        self._ending[running & (self._tick >= self._ticks)] = TERMINATED
        return self._view(earned.astype(np.float32))

    def save(self):
        return np.stack((self._cue, self._tick, self._ending)).astype(np.float64).tobytes()

    def restore(self, state):
        cue, tick, ending = np.frombuffer(state, np.float64).reshape(3, self.n)
        self._cue, self._tick, self._ending = cue.astype(np.float32), tick.astype(np.int64), ending.astype(np.uint8)

    def _legal(self):
        return None

    def _view(self, reward):
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=({"observation/cue": self._shown()},),
            legal=(self._legal(),),
            reward=reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, reward, 0).astype(np.float32)[:, None],
            tick=self._tick.copy(),
        )


def _spec(name, action, ticks, bounds):
    seat = SeatSpec(
        name="player", observation=(vector("observation/cue", 2, -1.0, 1.0),), action=action, reward_bounds=bounds
    )
    return GameSpec(
        id=GameId(f"small_games:{name}"), turns="simultaneous", seats=(seat,), max_ticks=ticks, resimulates=True
    )


class Recall(_Small):
    """The first view shows a cue, the later ones nothing; the last of four decisions must be the cue: 1, else 0."""

    def _shown(self):
        first = self._tick == 0
        return np.stack((np.where(first, self._cue, 0), self._tick == self._ticks - 1), 1).astype(np.float32)

    def _earned(self, action):
        return (self._tick == self._ticks - 1) * ((action == 1) == (self._cue > 0)) * 1.0


class Steer(_Small):
    """Each tick earns 1 - (action - 1.5 · cue)²; actions lie between -2 and 2."""

    def _shown(self):
        return np.stack((self._cue, np.zeros(self.n)), 1).astype(np.float32)

    def _earned(self, action):
        return 1 - (action[:, 0] - 1.5 * self._cue) ** 2


class Buttons(_Small):
    """Two levers of three and four places: 1 for each that stands where the cue wants it; the place 0 of the second,
    where a cue of -1 would have it, is not legal with a cue of 1."""

    def _shown(self):
        return np.stack((self._cue, np.zeros(self.n)), 1).astype(np.float32)

    def _legal(self):
        legal = np.ones((self.n, 7), bool)
        legal[:, 3] = self._cue < 0
        return legal

    def _earned(self, action):
        assert action.shape == (self.n, 2)
        assert self._legal()[np.arange(self.n), 3 + action[:, 1]].all()
        wanted = np.where(self._cue > 0, [[2], [3]], [[1], [0]]).T
        return (action == wanted).sum(1) * 1.0


class Broken(Recall):
    """Earns no number once it was played for a while."""

    def _earned(self, action):
        self.played = getattr(self, "played", 0) + 1
        return np.full(self.n, np.nan) if self.played > 100 else np.zeros(self.n)


RECALL = _spec("recall", discrete(2), 4, (0.0, 1.0))
STEER = _spec("steer", Leaf(name="action", kind="box", shape=(1,), low=-2.0, high=2.0), 2, (-12.0, 1.0))
BUTTONS = _spec(
    "buttons", Leaf(name="action", kind="multi-discrete", shape=(2,), dtype="int32", choices=(3, 4)), 2, (0.0, 2.0)
)
BROKEN = _spec("broken", discrete(2), 4, (0.0, 1.0))


def recall(n=1):
    return Recall(n, RECALL, 4)


def steer(n=1):
    return Steer(n, STEER, 2)


def buttons(n=1):
    return Buttons(n, BUTTONS, 2)


def broken(n=1):
    return Broken(n, BROKEN, 4)
