"""Who won how often against whom, and how good that makes each: counts of matches, Elo ratings with their doubt, and
the mixture of members that none of them beats."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparring.wire.chunk import Array

PRIOR_ELO = 600.0  # before any game a rating is within so much of the mean, with two chances in three
ELO = 400.0 / math.log(10.0)  # points for each unit of log-odds
NORMAL_95 = 1.96
STEPS = 50  # of Newton's method, which needs fewer than ten
REGRET_ROUNDS = 20_000


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


@dataclass(frozen=True, slots=True)
class Payoff:
    """The matrix of a league's results."""

    members: tuple[str, ...]
    points: Array  # float64 [n, n]: of the row's member against the column's; a draw is half a point
    games: Array  # float64 [n, n]

    @classmethod
    def of(cls, members: Sequence[str], matches: Iterable[Match]) -> "Payoff":
        """The results among these members; those of others are left out."""
        place = {name: at for at, name in enumerate(members)}
        points, games = np.zeros((len(place), len(place))), np.zeros((len(place), len(place)))
        for one in matches:
            if one.first in place and one.second in place:
                a, b = place[one.first], place[one.second]
                count, won = one.wins + one.draws + one.losses, one.wins + one.draws / 2
                points[a, b], points[b, a] = points[a, b] + won, points[b, a] + count - won
                games[[a, b], [b, a]] += count
        return cls(tuple(members), points, games)

    @property
    def win_rates(self) -> Array:
        """float64 [n, n]: the share of points; 0.5 where two have not met."""
        rates: Array = np.where(self.games > 0, self.points / np.maximum(self.games, 1), 0.5)
        return rates


@dataclass(frozen=True, slots=True)
class Rating:
    """How strong a member is. The true value lies between `low` and `high` with 95 % confidence."""

    member: str
    elo: float
    low: float
    high: float
    games: int
    score: float  # its share of all points


def ratings(payoff: Payoff, anchor: str | None = None) -> list[Rating]:
    """Elo of every member, the strongest first; `anchor` has 0, else the mean has.

    The most probable strengths under the Bradley-Terry model, in which a win's log-odds are the difference of two
    strengths, with a normal prior; so a member that won or lost every game has a finite rating with much doubt.
    """
    n = len(payoff.members)
    prior = (ELO / PRIOR_ELO) ** 2
    strength, information = np.zeros(n), np.eye(n) * prior
    for _ in range(STEPS):
        chance = 1.0 / (1.0 + np.exp(strength[None, :] - strength[:, None]))
        slope = (payoff.points - payoff.games * chance).sum(axis=1) - prior * strength
        curve = payoff.games * chance * (1.0 - chance)
        information = np.diag(curve.sum(axis=1) + prior) - curve
        step = np.linalg.solve(information, slope)
        strength = strength + step
        if np.abs(step).max(initial=0.0) < 1e-9:
            break
    covariance = np.linalg.inv(information)
    base = np.full(n, 1.0 / n) if anchor is None else (np.array(payoff.members) == anchor).astype(np.float64)
    found = []
    for at, member in enumerate(payoff.members):
        against = (np.arange(n) == at) - base
        elo, doubt = ELO * float(against @ strength), ELO * math.sqrt(max(0.0, against @ covariance @ against))
        games = int(payoff.games[at].sum())
        score = float(payoff.points[at].sum() / games) if games else 0.5
        found.append(Rating(member, elo, elo - NORMAL_95 * doubt, elo + NORMAL_95 * doubt, games, score))
    return sorted(found, key=lambda one: one.elo, reverse=True)


def nash_mixture(win_rates: Array) -> Array:
    """float64 [n]: how often to play each member so that none wins more than half of the points against the mixture.

    By regret matching+ in self-play, whose average approaches a Nash equilibrium (Tammelin 2014). Where strength goes
    in circles several members have a share; copies of one member share it, so they do not count more (Balduzzi et al.
    2018, "Re-evaluating Evaluation").
    """
    gains = 2.0 * np.asarray(win_rates, np.float64) - 1.0
    regret, total = np.zeros(len(gains)), np.zeros(len(gains))
    for number in range(1, REGRET_ROUNDS + 1):
        played = regret / regret.sum() if regret.sum() > 0 else np.full(len(gains), 1.0 / len(gains))
        total += number * played  # later rounds count more
        value = gains @ played
        regret = np.maximum(0.0, regret + value - played @ value)
    mixture: Array = total / total.sum()
    return mixture
