"""Games whose seats see and do different things: a guide sees 4 numbers and has 3 actions, a runner 6 and 5."""

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from sparring.games.protocol import RUNNING, TERMINATED, View
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.wire.ids import GameId

TICKS = 4
SHOWN, CHOICES = (4, 6), (3, 5)  # of each kind
_MIX = np.uint64(0x9E3779B97F4A7C15)


def _spec(name, teams, runners=1):
    seats = [("guide", 0, teams[0]), *((f"runner_{i}", 1, teams[1]) for i in range(runners))]
    return GameSpec(
        id=GameId(f"unequal_seats:{name}"),
        turns="simultaneous",
        seats=tuple(
            SeatSpec(
                name=seat,
                team=team,
                observation=(vector("observation/seen", SHOWN[kind], -1.0, 1.0),),
                action=discrete(CHOICES[kind]),
                reward_bounds=(-1, 1),
            )
            for seat, kind, team in seats
        ),
        max_ticks=TICKS,
        resimulates=True,
    )


RIVALS, MATES = _spec("rivals", (0, 1), 2), _spec("mates", (0, 0))


@dataclass
class Cues:
    """n games of TICKS ticks. Each seat is shown which of its choices is right, and earns 1 for it, else 0. With
    `turns` seats move one after another; with `early` the second seat leaves after one tick."""

    n: int
    spec: GameSpec
    turns: bool = False
    early: bool = False
    uphill: bool = False  # the first seat scores more, whatever is done

    def __post_init__(self):
        seats = len(self.spec.seats)
        self._cue = np.zeros((self.n, seats), np.int64)
        self._tick = np.zeros(self.n, np.int64)
        self._ending = np.full((self.n, seats), TERMINATED, np.uint8)
        self._score = np.zeros((self.n, seats), np.float32)
        self._seed = np.zeros(self.n, np.uint64)

    def reset(self, seeds, which):
        self._seed[which], self._tick[which] = seeds[which], 0
        self._ending[which], self._score[which] = RUNNING, 0
        self._draw()
        return self._view(np.zeros(self._ending.shape, np.float32))

    def step(self, actions):
        asked = self._to_act()
        right = np.stack(list(actions), axis=1) == self._cue
        earned = (right & asked).astype(np.float32)
        self._score += earned
        running = (self._ending == RUNNING).any(axis=1)
        self._tick += running
        last = self._tick >= TICKS * (len(self.spec.seats) if self.turns else 1)
        self._ending[last] = TERMINATED
        if self.early:
            self._ending[:, 1] = TERMINATED
        self._draw()
        return self._view(earned)

    def save(self):
        parts = (self._tick[:, None], self._ending, self._score)
        return self._seed.tobytes() + np.concatenate(parts, axis=1).astype(np.float64).tobytes()

    def restore(self, state):
        self._seed = np.frombuffer(state[: 8 * self.n], np.uint64).copy()
        table, seats = np.frombuffer(state[8 * self.n :], np.float64).reshape(self.n, -1), len(self.spec.seats)
        self._tick = table[:, 0].astype(np.int64)
        self._ending = table[:, 1 : 1 + seats].astype(np.uint8)
        self._score = table[:, 1 + seats :].astype(np.float32)
        self._draw()

    def _draw(self):
        for place, seat in enumerate(self.spec.seats):
            mixed = (self._seed ^ (self._tick.astype(np.uint64) * _MIX + np.uint64(place))) * _MIX
            self._cue[:, place] = (mixed >> np.uint64(40)) % np.uint64(seat.action.choices[0])

    def _to_act(self):
        running = self._ending == RUNNING
        if self.turns:
            running &= (self._tick % running.shape[1])[:, None] == np.arange(running.shape[1])
        return running

    def _view(self, reward):
        seen = []
        for place, seat in enumerate(self.spec.seats):
            shown = np.zeros((self.n, *seat.observation[0].shape), np.float32)
            shown[np.arange(self.n), self._cue[:, place]] = 1.0
            seen.append({"observation/seen": shown})
        over = (self._ending != RUNNING).all(axis=1)
        score = self._score + np.where(np.arange(len(seen)) == 0, 10 * self.uphill, 0)
        return View(
            to_act=self._to_act(),
            observation=tuple(seen),
            legal=(None,) * len(self.spec.seats),
            reward=reward,
            ending=self._ending.copy(),
            outcome=np.where(over[:, None], score, 0).astype(np.float32),
            tick=self._tick.copy(),
        )


def rivals(n=1):
    """A guide against two runners."""
    return Cues(n, RIVALS)


def mates(n=1):
    """A guide and a runner of one team."""
    return Cues(n, MATES)


def in_turns(n=1):
    """As rivals, one after another."""
    spec = replace(RIVALS, id=GameId("unequal_seats:in_turns"), turns="alternating", max_ticks=TICKS * 3)
    return Cues(n, spec, turns=True)


def early(n=1):
    """As rivals; the first runner leaves after one tick."""
    return Cues(n, replace(RIVALS, id=GameId("unequal_seats:early")), early=True)


def uphill(n=1):
    """Two rivals who see and do the same, the first of whom always wins."""
    seats = tuple(replace(seat, team=team) for team, seat in enumerate(RIVALS.seats[1:]))
    return Cues(n, replace(RIVALS, id=GameId("unequal_seats:uphill"), seats=seats), uphill=True)
