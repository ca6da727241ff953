"""How good results make each member, from matrices and lists alone: no file, no clock.

- `elo_ratings`: one number with an interval, by the Bradley-Terry model. `rating_curves`: the same, match by match.
- `bayesian_ratings`: openskill's mean and deviation, game by game; of teams, and of more than two sides.
- `nash_mixture`, `alpha_rank`: who is left where strength goes in circles, which one number cannot say.
- `spinning_top`: how much of the results is transitive, and how many members share each level of strength.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.league.payoff import Match, Payoff
from sparring.wire.chunk import Array

PRIOR_ELO = 600.0  # before any game a rating is within so much of the mean, with two chances in three
ELO = 400.0 / math.log(10.0)  # points for each unit of log-odds
NORMAL_95 = 1.96
WIDEST_ELO = 1_600.0
STEPS = 50  # of Newton's method, which needs fewer than ten
REGRET_ROUNDS, CHECK_ROUNDS = 20_000, 250
EXPLOITABLE = 1e-3  # a mixture is good enough where no member gains more than this share of a game against it
SHARE = 0.01  # of a mixture that makes a member part of its support
MUTATION = 0.01  # alpha-rank: the chance that the weaker of two takes over, which makes its answer unique
MAX_RATED_GAMES = 100_000  # at once by openskill: some 2 s


@dataclass(frozen=True, slots=True)
class Rating:
    """How strong a member is. The true value lies between `low` and `high` with 95 % confidence."""

    member: str
    elo: float
    low: float
    high: float
    games: int
    score: float  # its share of all points


def elo_ratings(payoff: Payoff, anchor: str | None = None) -> list[Rating]:
    """Elo of every member, the strongest first; `anchor` has 0, or the mean has where it is no member.

    The most probable strengths under the Bradley-Terry model, in which a win's log-odds are the difference of two
    strengths, with a normal prior; so a member that won or lost every game has a finite rating with much doubt.
    """
    n, games, points = len(payoff.members), payoff.games, payoff.points
    strength, covariance = _bradley_terry(points, games)
    base = (np.array(payoff.members) == anchor).astype(np.float64)
    base = base if base.any() else np.full(n, 1.0 / n)
    against = np.eye(n) - base
    elo = ELO * (against @ strength)
    doubt = NORMAL_95 * ELO * np.sqrt(np.maximum(0.0, ((against @ covariance) * against).sum(axis=1)))
    played = games.sum(axis=1)
    score = np.where(played > 0, points.sum(axis=1) / np.where(played > 0, played, 1.0), 0.5)
    found = [
        Rating(name, float(elo[at]), float(elo[at] - doubt[at]), float(elo[at] + doubt[at]), count, float(score[at]))
        for at, (name, count) in enumerate(zip(payoff.members, played.round().astype(int).tolist(), strict=True))
    ]
    return sorted(found, key=lambda one: one.elo, reverse=True)


def _bradley_terry(points: Array, games: Array) -> tuple[Array, Array]:
    """Strengths [n] in log-odds and their covariance [n, n], by Newton's method."""
    prior = (ELO / PRIOR_ELO) ** 2
    strength, information = np.zeros(len(points)), np.eye(len(points)) * prior
    for _ in range(STEPS):
        chance = 1.0 / (1.0 + np.exp(strength[None, :] - strength[:, None]))
        slope = (points - games * chance).sum(axis=1) - prior * strength
        curve = games * chance * (1.0 - chance)
        information = np.diag(curve.sum(axis=1) + prior) - curve
        step = np.linalg.solve(information, slope)
        strength = strength + step
        if np.abs(step).max(initial=0.0) < 1e-9:
            break
    return strength, np.linalg.inv(information)


def known_rates(payoff: Payoff) -> Array:
    """float64 [n, n]: the share of points; what the Bradley-Terry model predicts where two have not met."""
    strength, _ = _bradley_terry(payoff.points, payoff.games)
    predicted = 1.0 / (1.0 + np.exp(strength[None, :] - strength[:, None]))
    rates: Array = np.where(payoff.games > 0, payoff.win_rates, predicted)
    return rates


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A member's rating after so many games of the league."""

    games: int
    at_ms: int
    elo: float
    low: float
    high: float


def rating_curves(
    members: Sequence[str], matches: Sequence[Match], anchor: str | None = None, points: int = 50
) -> dict[str, list[CurvePoint]]:
    """The ratings of these members at up to `points` moments that lie some equally many games apart; the last is now.
    A curve begins where the interval is narrower than WIDEST_ELO: before, nothing is known."""
    played = np.cumsum([0, *(one.games for one in matches)])  # before the first match, after it, after the second …
    ends = np.searchsorted(played, np.linspace(0, played[-1], points + 1)[1:])
    curves: dict[str, list[CurvePoint]] = {name: [] for name in members}
    wins, draws, begin = np.zeros((len(members), len(members))), np.zeros((len(members), len(members))), 0
    for end in sorted(set(ends.tolist()) - {0}):
        more = Payoff.of(members, matches[begin:end])
        wins, draws, begin = wins + more.wins, draws + more.draws, end
        for one in elo_ratings(Payoff(tuple(members), wins, draws), anchor):
            if one.games and one.high - one.low < WIDEST_ELO:
                at_ms = matches[end - 1].played_at_ms
                curves[one.member].append(CurvePoint(int(played[end]), at_ms, one.elo, one.low, one.high))
    return curves


@dataclass(frozen=True, slots=True)
class Result:
    """One game or several alike: who sat in each team, and each team's place, 1 being the best; equal ones drew."""

    teams: tuple[tuple[str, ...], ...]
    places: tuple[int, ...]
    games: int = 1


@dataclass(frozen=True, slots=True)
class BayesianRating:
    """A normal belief about a member's skill, on openskill's scale: 25 ± 8.33 before any game."""

    mu: float
    sigma: float


def results_of(matches: Iterable[Match]) -> Iterable[Result]:
    """The games of matches, each between two teams of one; wins, draws and losses take turns as evenly as can be."""
    for one in matches:
        teams, counts = ((one.first,), (one.second,)), (one.wins, one.draws, one.losses)
        spread = sorted(((k + 0.5) / count, kind) for kind, count in enumerate(counts) for k in range(count))
        for kind, alike in itertools.groupby(kind for _, kind in spread):
            yield Result(teams, ((1, 2), (1, 1), (2, 1))[kind], sum(1 for _ in alike))


class BayesianRater:
    """Skill by openskill's Bradley-Terry model (Weng and Lin 2011), game by game: some 20 µs each.

    With `changing` the members learn, so that doubt never ends; frozen ones are known ever better.
    """

    def __init__(self, changing: bool = False) -> None:
        from openskill.models import BradleyTerryFull

        self._model = BradleyTerryFull() if changing else BradleyTerryFull(tau=0.0)
        self._found: dict[str, Any] = {}

    def add(self, results: Iterable[Result]) -> None:
        """Rate further games, oldest first. Of more than MAX_RATED_GAMES at once each pairing has its newest ones,
        equally many: members that retired long ago are rated too."""
        held = list(results)
        most = sum(one.games for one in held)
        if most > MAX_RATED_GAMES:
            most = max(1, MAX_RATED_GAMES // len({one.teams for one in held}))
        left, counts = dict.fromkeys((one.teams for one in held), most), list[int]()
        for one in reversed(held):
            counts.append(min(one.games, left[one.teams]))
            left[one.teams] -= counts[-1]
        for one, count in zip(held, reversed(counts), strict=True):
            for _ in range(count):
                self._rate(one)

    def _rate(self, one: Result) -> None:
        teams = [[self._found.get(name) or self._model.rating() for name in team] for team in one.teams]
        rated = self._model.rate(teams, ranks=list(one.places))
        for names, team in zip(one.teams, rated, strict=True):
            self._found.update(zip(names, team, strict=True))

    def ratings(self) -> dict[str, BayesianRating]:
        """What is believed now of everybody who played."""
        return {name: BayesianRating(one.mu, one.sigma) for name, one in self._found.items()}


def bayesian_ratings(results: Iterable[Result], changing: bool = False) -> dict[str, BayesianRating]:
    """Skill after these games, oldest first."""
    rater = BayesianRater(changing)
    rater.add(results)
    return rater.ratings()


def nash_mixture(win_rates: Array) -> Array:
    """float64 [n]: how often to play each member so that none wins more than half of the points against the mixture.

    By regret matching+ in self-play, whose average approaches a Nash equilibrium (Tammelin 2014), among those that
    nobody outside beats. Where strength goes in circles several members have a share; copies of one member share it,
    so they do not count more (Balduzzi et al. 2018, "Re-evaluating Evaluation").
    """
    top = _top_cycle(win_rates)
    gains = 2.0 * np.asarray(win_rates, np.float64)[np.ix_(top, top)] - 1.0
    regret, total = np.zeros(len(top)), np.full(len(top), 1.0)
    if np.abs(gains).max(initial=0.0) > 0.0:
        total = np.zeros(len(top))
        for number in range(1, REGRET_ROUNDS + 1):
            played = regret / regret.sum() if regret.sum() > 0 else np.full(len(gains), 1.0 / len(gains))
            total += number * played  # later rounds count more
            value = gains @ played
            regret = np.maximum(0.0, regret + value - played @ value)
            if number % CHECK_ROUNDS == 0 and (gains @ total).max() < EXPLOITABLE * total.sum():
                break
    mixture = np.zeros(len(win_rates))
    mixture[top] = total / total.sum()
    return mixture


def _top_cycle(win_rates: Array) -> Array:
    """The members that reach all others along "does not lose to": a Nash equilibrium plays no other, since each of
    them beats every member outside."""
    reach = np.asarray(win_rates) >= 0.5
    for via in range(len(reach)):
        reach = reach | (reach[:, via, None] & reach[None, via])
    return np.flatnonzero(reach.sum(axis=1) == reach.sum(axis=1).max(initial=0))


def nash_skill(win_rates: Array, mixture: Array) -> Array:
    """float64 [n]: each member's share of points against the Nash mixture: 0.5 for those in it, less for others."""
    skill: Array = np.asarray(win_rates, np.float64) @ mixture
    return skill


def alpha_rank(win_rates: Array, alpha: float | None = None, population: int = 50) -> Array:
    """float64 [n]: how much of the time a population is made of each member, where better ones take over again and
    again (Omidshafiei et al. 2019), one population, by local selection.

    Without `alpha` selection is as strong as can be: who wins more against another takes over, whatever the margin,
    but for the share MUTATION in which the other one does, so that the answer is unique; even ones take over alike.
    """
    rates = np.asarray(win_rates, np.float64)
    n = len(rates)
    gain = (rates - rates.T).T  # [from, to]: what `to` wins more against `from` than it loses
    if alpha is None:
        takes = np.where(np.abs(gain) < 1e-14, 0.5, np.where(gain > 0, 1.0 - MUTATION, MUTATION))
    else:
        u = np.clip(alpha * gain, -500.0 / population, 500.0)
        near = np.abs(u) < 1e-14
        safe = np.where(near, 1.0, u)
        takes = np.where(near, 1.0 / population, np.expm1(-safe) / np.expm1(-population * safe))
    moves = np.where(np.eye(n, dtype=bool), 0.0, takes / max(1, n - 1))
    return _stationary(moves)


def _stationary(moves: Array) -> Array:
    """The stationary distribution of a chain with these chances [from, to], without the diagonal, by the elimination
    of Grassmann, Taksar and Heyman: nothing is subtracted, so small chances keep their digits."""
    chain, n = moves.copy(), len(moves)
    for last in range(n - 1, 0, -1):
        chain[:last, last] /= chain[last, :last].sum()
        chain[:last, :last] += np.outer(chain[:last, last], chain[last, :last])
    share = np.ones(n)
    for at in range(1, n):
        share[at] = share[:at] @ chain[:at, at]
    found: Array = share / share.sum()
    return found


@dataclass(frozen=True, slots=True)
class Layer:
    """A level of the spinning top: the members of one Nash equilibrium among those that were left, and their mean
    share of points against all members."""

    members: tuple[str, ...]
    strength: float


@dataclass(frozen=True, slots=True)
class SpinningTop:
    """How transitive a league is. Its layers, the strongest first, are as wide as strength goes in circles there."""

    layers: tuple[Layer, ...]
    transitive: float  # share of the results' variance that one number for each member explains
    cyclic: float  # the rest
    cyclic_triples: int  # a beats b, b beats c, c beats a
    triples: int  # all three met, and no two are even


def spinning_top(payoff: Payoff) -> SpinningTop:
    """Layers by repeated Nash equilibria (Czarnecki et al. 2020, "Real World Games Look Like Spinning Tops"), and the
    results' variance by the combinatorial Hodge decomposition (Jiang et al. 2011), a pair weighted by its games."""
    rates, left = known_rates(payoff), np.arange(len(payoff.members))
    strength = (rates.sum(axis=1) - 0.5) / max(1, len(rates) - 1)
    layers = []
    while len(left):
        mixture = nash_mixture(rates[np.ix_(left, left)])
        chosen = mixture > min(SHARE, mixture.max() / 2)
        there = left[chosen]
        layers.append(Layer(tuple(payoff.members[at] for at in there), float(strength[there].mean())))
        left = left[~chosen]
    transitive = _transitive_share(2.0 * rates - 1.0, payoff.games)
    cycles, triples = _triples(rates, payoff.games)
    return SpinningTop(tuple(layers), transitive, 1.0 - transitive, cycles, triples)


def _transitive_share(gains: Array, games: Array) -> float:
    """Share of the weighted squares of an antisymmetric matrix that differences of one potential explain."""
    total = float((games * gains**2).sum())
    if total <= 0.0:
        return 1.0  # all are even: nothing goes in circles
    laplacian = np.diag(games.sum(axis=1)) - games
    potential = np.linalg.lstsq(laplacian, (games * gains).sum(axis=1), rcond=None)[0]
    rest = gains - (potential[:, None] - potential[None, :])
    return min(1.0, max(0.0, 1.0 - float((games * rest**2).sum()) / total))


def _triples(rates: Array, games: Array) -> tuple[int, int]:
    """How many triples are cycles, and how many there are in which each beats or loses to each."""
    beats = ((rates > 0.5) & (games > 0)).astype(np.int64)
    cycles = int(np.trace(beats @ beats @ beats)) // 3
    met = beats + beats.T
    return cycles, int(np.trace(met @ met @ met)) // 6
