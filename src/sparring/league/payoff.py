"""Who won how often against whom: matches, and the matrix of their wins and draws."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparring.wire.chunk import Array


@dataclass(frozen=True, slots=True)
class Match:
    """Games between two members, half of them from each side: what the first one won, drew and lost."""

    id: str
    first: str
    second: str
    seed: int  # of its games: the same members play them again, move by move
    wins: int
    draws: int
    losses: int
    distinct: int = 0
    played_at_ms: int = 0
    digest: str = ""  # of every move of every game; "" where it was not kept

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses


@dataclass(frozen=True, slots=True)
class Payoff:
    """The matrix of a league's results among members that do not change, so none counts less with time. Those of a
    learner fade (`matchmaking.WinRates`)."""

    members: tuple[str, ...]
    wins: Array  # float64 [n, n]: of the row's member against the column's
    draws: Array  # float64 [n, n], symmetric

    @classmethod
    def of(cls, members: Sequence[str], matches: Iterable[Match]) -> "Payoff":
        """The results among these members; those of others are left out."""
        place = {name: at for at, name in enumerate(members)}
        wins, draws = np.zeros((len(place), len(place))), np.zeros((len(place), len(place)))
        for one in matches:
            if one.first in place and one.second in place:
                a, b = place[one.first], place[one.second]
                wins[a, b] += one.wins
                wins[b, a] += one.losses
                draws[[a, b], [b, a]] += one.draws
        return cls(tuple(members), wins, draws)

    @property
    def points(self) -> Array:
        """float64 [n, n]: of the row's member against the column's; a draw is half a point."""
        points: Array = self.wins + self.draws / 2
        return points

    @property
    def games(self) -> Array:
        """float64 [n, n], symmetric."""
        games: Array = self.wins + self.wins.T + self.draws
        return games

    @property
    def win_rates(self) -> Array:
        """float64 [n, n]: the share of points; 0.5 where two have not met."""
        games = self.games
        rates: Array = np.where(games > 0, self.points / np.where(games > 0, games, 1.0), 0.5)
        return rates


def members_in(matches: Iterable[Match]) -> list[str]:
    """Everybody who played one of the matches, in order of name."""
    return sorted({name for one in matches for name in (one.first, one.second)})
