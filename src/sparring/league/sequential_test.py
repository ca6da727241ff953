"""Is one player better than another? A test by betting, which may look at its results after every game.

A result is a number from 0 to 1, 0.5 where both did equally well: the score of a pair of games from both sides of one
opening, or the difference of two returns on one seed, scaled. The test bets at fair odds that results are above a
`mean`, and starts with a wealth of 1. If they are not above it, the wealth ever reaches 1 / alpha with a chance of at
most alpha (Ville's inequality), whenever one looks and stops. So a wealth of 20 refutes "not above `mean`" at 5 %.
Nothing is assumed of how results are distributed; only that each is drawn independently.

The stakes are several fixed ones side by side: small ones find small differences, large ones find large ones early. See
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2023.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sparring.wire.chunk import Array

SHARES = np.geomspace(0.01, 0.95, 16)  # of what may be staked without the risk of losing it all
EVEN = 0.5
TOLERANCE = 1e-4  # of an interval's ends


class Verdict(StrEnum):
    BETTER = "better"
    NOT_WORSE = "not worse"  # not below the tolerated loss, and not shown to be better
    NOT_BETTER = "not better"  # shown not to be better by the gain that is worth finding
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """What a test promises. `gain` is the difference of results that is worth finding: where a smaller one is likely,
    the test ends without a promotion instead of going on for ever."""

    alpha: float = 0.05  # the chance that a player who is not better is called better, or one not worse is called worse
    beta: float = 0.05  # the chance that a player better by `gain` is called not better, and given up early
    gain: float = 0.0288  # 20 Elo

    def of_try(self, number: int) -> "ErrorRates":
        """For the `number`-th try (from 1) of one lineage: all tries together keep `alpha`, however many follow."""
        return ErrorRates(self.alpha / (number * (number + 1)), self.beta, self.gain)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many results have each value. Tests side by side are leading axes of `counts`; each is judged alone."""

    values: Array  # float64 [k], from 0 to 1
    counts: Array  # [..., k]

    @classmethod
    def of(cls, results: Array) -> "Counts":
        return cls(*np.unique(np.asarray(results, np.float64), return_counts=True))  # pairs of games have five values

    def log_wealth(self, mean: float) -> Array:
        """float64 [...] of a bet that results are above `mean`; 0.0 at the start. At most log(1 / alpha) with a chance
        of 1 - alpha, where they are not."""
        if not 0.0 < mean < 1.0:
            return np.full(self.counts.shape[:-1], -math.inf if mean >= 1.0 else math.inf)
        gains = self.counts @ np.log1p(SHARES / mean * (self.values[:, None] - mean))
        wealth: Array = np.logaddexp.reduce(gains, axis=-1) - math.log(len(SHARES))
        return wealth

    def above(self, mean: float, alpha: float) -> Array:
        """bool [...]: whether the results refute "not above `mean`" at the level `alpha`."""
        return np.asarray(self.log_wealth(mean) >= math.log(1.0 / alpha))

    def below(self, mean: float, alpha: float) -> Array:
        """bool [...]: whether the results refute "not below `mean`"."""
        return Counts(1.0 - self.values, self.counts).above(1.0 - mean, alpha)

    def judged(self, rates: ErrorRates) -> tuple[Array, Array]:
        """The verdicts [...] on the results so far, and whether they are final (bool [...]): more results would not
        lead to BETTER but rarely."""
        better, worse = self.above(EVEN, rates.alpha), self.below(EVEN, rates.alpha)
        not_worse = self.above(EVEN - rates.gain, rates.alpha)
        not_better = self.below(EVEN + rates.gain, rates.beta)
        verdicts = np.select(
            [better, worse, not_worse, not_better],
            [Verdict.BETTER, Verdict.WORSE, Verdict.NOT_WORSE, Verdict.NOT_BETTER],
            Verdict.UNDECIDED,
        )
        return verdicts, better | worse | not_better


def interval(results: Array, alpha: float) -> tuple[float, float]:
    """Where the true mean lies, with a chance of 1 - `alpha` at every moment of a test at once."""
    return _least(results, alpha / 2), 1.0 - _least(1.0 - np.asarray(results), alpha / 2)


def _least(results: Array, alpha: float) -> float:
    """The largest mean that the results show themselves to be above."""
    counts, low, high = Counts.of(results), 0.0, 1.0
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if counts.above(middle, alpha) else (low, middle)
    return low


def judge(results: Array, rates: ErrorRates) -> tuple[Verdict, bool]:
    """The verdict on the results so far, and whether it is final."""
    verdict, final = Counts.of(results).judged(rates)
    return Verdict(str(verdict)), bool(final)


def elo_of(score: float) -> float:
    """The difference of Elo ratings that gives that expected score, 1,200 at most."""
    return 400.0 * math.log10(1.0 / min(max(1.0 - score, 0.001), 0.999) - 1.0)
