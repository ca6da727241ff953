"""Who plays whom: prioritised fictitious self-play (PFSP), as AlphaStar's league has it (Vinyals et al. 2019).

A member meets opponents the more often, the more it can learn from them. `x` is its win rate against an opponent, 0.5
where the two have not met.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.random import Generator

from sparring.wire.chunk import Array

Weighting = Literal["variance", "linear", "capped", "squared"]
WEIGHTINGS: dict[Weighting, Callable[[Array], Array]] = {
    "variance": lambda x: x * (1.0 - x),  # those of its own strength
    "linear": lambda x: 1.0 - x,
    "capped": lambda x: np.minimum(0.5, 1.0 - x),  # stronger ones alike
    "squared": lambda x: (1.0 - x) ** 2,  # the strongest most of all
}
assert set(WEIGHTINGS) == set(get_args(Weighting))

HALF_LIFE_GAMES = 200.0  # a learner changes: after so many more games a result counts half
FEW_GAMES = 20.0  # with fewer, a win rate says little
LOSING = 0.5


def opponent_chances(win_rates: Array, weighting: Weighting) -> Array:
    """float64 [opponents]: how often each is met; all alike where no weight is left, as when every one is beaten."""
    weights = WEIGHTINGS[weighting](np.asarray(win_rates, np.float64))
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def draw_opponent(member: int, win_rates: Array, weighting: Weighting, rng: Generator) -> int:
    """The opponent of a member by its row of `win_rates` [n, n]; never itself."""
    others = np.delete(np.arange(len(win_rates)), member)
    return int(rng.choice(others, p=opponent_chances(win_rates[member, others], weighting)))


@dataclass(slots=True)
class WinRates:
    """What one learner scored against each opponent, of late: a draw is half a win, and old results fade."""

    _points: dict[str, float] = field(default_factory=dict)
    _games: dict[str, float] = field(default_factory=dict)
    _once_lost: set[str] = field(default_factory=set)

    def add(self, opponent: str, wins: int, draws: int, losses: int) -> None:
        """The learner's results in its newest games against the opponent."""
        games = wins + draws + losses
        kept = 0.5 ** (games / HALF_LIFE_GAMES)
        self._points[opponent] = self._points.get(opponent, 0.0) * kept + wins + draws / 2
        self._games[opponent] = self._games.get(opponent, 0.0) * kept + games
        if self.known(opponent) and self.of(opponent) < LOSING:
            self._once_lost.add(opponent)

    def of(self, opponent: str) -> float:
        """The share of points; 0.5 where they have not met."""
        games = self._games.get(opponent, 0.0)
        return self._points[opponent] / games if games else 0.5

    def known(self, opponent: str) -> bool:
        """Whether there are enough games to go by."""
        return self._games.get(opponent, 0.0) >= FEW_GAMES

    def once_lost(self, opponent: str) -> bool:
        """Whether the opponent was ever ahead, though it may be beaten now."""
        return opponent in self._once_lost
