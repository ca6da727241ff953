"""Where everybody in a game's league stands: the ladder with every rating, the payoff matrix, how transitive it is, and
how ratings came to be. `spar league show` prints it, the page "League" draws it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparring.league.payoff import Match, Payoff, members_in
from sparring.league.people import PeopleResults, pairs
from sparring.league.ratings import (
    BayesianRater,
    CurvePoint,
    Result,
    SpinningTop,
    alpha_rank,
    elo_ratings,
    known_rates,
    nash_mixture,
    nash_skill,
    rating_curves,
    results_of,
    spinning_top,
)

ANCHOR = "script:random"  # has Elo 0, where it is a member
CURVES = 8  # of the strongest members


@dataclass(frozen=True, slots=True)
class LadderRow:
    """A member with its ratings."""

    member: str
    elo: float
    low: float  # the true Elo lies between `low` and `high` with 95 % confidence
    high: float
    mu: float  # openskill's mean,
    sigma: float  # and deviation
    games: int
    points: float  # share of all points
    nash: float  # share of the mixture that nobody beats
    nash_skill: float  # share of points against that mixture
    alpha_rank: float


@dataclass(frozen=True, slots=True)
class Standings:
    """All of it. Matrices have the order of the ladder; losses are the transpose of wins."""

    matches: int
    games: int
    anchor: str | None  # None: the mean Elo is 0
    ladder: list[LadderRow]
    wins: list[list[float]]
    draws: list[list[float]]
    top: SpinningTop
    curves: dict[str, list[CurvePoint]]  # of the CURVES strongest
    persons: int  # whose games are among the results
    people_games: int


class Ladder:
    """The standings of one league, kept up to date: a call rates the games that came since the last one. Not for two
    threads at once."""

    def __init__(self) -> None:
        self._rater = BayesianRater()
        self._rated: set[str] = set()
        self._people_rated: dict[tuple[int, Result], int] = {}

    def standings(
        self, matches: Sequence[Match], people: PeopleResults | None = None, *, apart: bool = False
    ) -> Standings:
        """By the matches, oldest first, and people's games; `apart` shows persons by themselves."""
        sat = [] if people is None else people.results(apart=apart)
        self._rate(matches, sat)
        everything = sorted([*matches, *pairs(sat)], key=lambda one: one.played_at_ms)
        names = members_in(everything)
        found = Payoff.of(names, everything)
        ranked = elo_ratings(found, ANCHOR)
        order = [names.index(one.member) for one in ranked]
        payoff = Payoff(tuple(one.member for one in ranked), found.wins[order][:, order], found.draws[order][:, order])
        rates = known_rates(payoff)
        mixture, ranks, skill = nash_mixture(rates), alpha_rank(rates), self._rater.ratings()
        against = nash_skill(rates, mixture)
        ladder = [
            LadderRow(
                member=one.member,
                elo=round(one.elo, 2),
                low=round(one.low, 2),
                high=round(one.high, 2),
                mu=round(skill[one.member].mu, 3),
                sigma=round(skill[one.member].sigma, 3),
                games=one.games,
                points=round(one.score, 4),
                nash=round(float(mixture[at]), 4),
                nash_skill=round(float(against[at]), 4),
                alpha_rank=round(float(ranks[at]), 4),
            )
            for at, one in enumerate(ranked)
        ]
        curves = rating_curves(names, everything, ANCHOR)
        return Standings(
            matches=len(matches),
            games=sum(one.games for one in matches),
            anchor=ANCHOR if ANCHOR in names else None,
            ladder=ladder,
            wins=payoff.wins.tolist(),
            draws=payoff.draws.tolist(),
            top=spinning_top(payoff),
            curves={one.member: curves[one.member] for one in ladder[:CURVES]},
            persons=0 if people is None else people.persons,
            people_games=0 if people is None else people.games,
        )

    def _rate(self, matches: Sequence[Match], sat: Sequence[tuple[int, Result]]) -> None:
        """Rate what was not rated yet, oldest first."""
        fresh = [
            (one.played_at_ms, result) for one in matches if one.id not in self._rated for result in results_of([one])
        ]
        self._rated.update(one.id for one in matches)
        for at_ms, one in sat:
            key = at_ms, Result(one.teams, one.places)
            if more := one.games - self._people_rated.get(key, 0):
                fresh.append((at_ms, Result(one.teams, one.places, more)))
                self._people_rated[key] = one.games
        self._rater.add(result for _, result in sorted(fresh, key=lambda one: one[0]))
