"""How often the promotion gate is wrong, and how many games it needs: simulated promotions of known strength.

    spar bench gate [--quick]

A lineage is tried up to 20 times against the champion, with models of one true strength; its first promotion ends it.
Three kinds of games: without draws, and with 60 % drawn (Elo above the champion; two games from both sides of each
opening are one result), and of one seat (standard deviations of return above the champion's; returns are skewed and
differences are limited, as the gate does). Each try looks after 32, 64, 128 … results, 1,000 at most, and judges them
with the test that the gate uses, on counts of results, for all lineages at once.
The peer is the gate that it replaced: at least half of the points in 200 games, or at least the champion's mean return
in 200 episodes. Goal: of 10,000 lineages that are not better at most 5 % get a champion.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench import ledger
from numpy.random import Generator

from sparring.league.gate import ALPHA, BATCH, SCALE
from sparring.league.sequential_test import Counts, ErrorRates, Verdict
from sparring.wire.chunk import Array

LINEAGES, QUICK_LINEAGES, TRIES, MOST_GAMES, OLD_GAMES = 10_000, 300, 20, 2_000, 200
DRAWS = {"no draws": 0.0, "60 % drawn": 0.6}
ELOS = (-100.0, -50.0, -20.0, 0.0, 20.0, 50.0, 100.0)
EFFECTS = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0)  # standard deviations
GRID = 0.05  # standard deviations: returns are whole multiples of it, so that results can be counted
LONGEST = 8.0  # standard deviations: returns end here
PEER = "the old rule"
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Results:
    """How one result of a try is distributed."""

    values: Array  # float64 [k]
    chances: Array  # float64 [k]
    games: int  # that each player plays for one result

    @classmethod
    def of_pairs(cls, elo: float, draws: float) -> "Results":
        """The mean score of two games of a player that is so much stronger."""
        score = 1.0 / (1.0 + 10.0 ** (-elo / 400.0))
        one = np.array([1.0 - score - draws / 2, draws, score - draws / 2])
        return cls(np.arange(5) / 4, np.convolve(one, one), 2)

    @classmethod
    def of_returns(cls, effect: float) -> "Results":
        """The limited difference of two returns, exponentially distributed as those of many games are (a standard
        deviation of 1); the model's are higher by `effect`."""
        returns = np.arange(0.0, LONGEST, GRID)
        one = np.exp(-returns)
        differences = np.convolve(one, one[::-1])
        steps = np.arange(len(differences)) - (len(returns) - 1) + round(effect / GRID)
        results = np.clip(steps * GRID / SCALE, -1.0, 1.0) / 2 + 0.5
        values, place = np.unique(results, return_inverse=True)
        chances = np.bincount(place, differences)
        return cls(values, chances / chances.sum(), 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of all lineages of one strength."""

    promoted: Array  # bool [lineages]
    old: Array  # bool [lineages]: promoted by the old rule
    games: Array  # of every try
    verdicts: Array  # of every try
    answered: Array  # bool of every try: the test ended it, not the number of games


def tried(results: Results, rates: ErrorRates, lineages: int, rng: Generator) -> tuple[Array, Array, Array]:
    """One try of each lineage: its verdict, the games that it took, and whether the test ended it."""
    most, rounds, look = MOST_GAMES // results.games, 0, BATCH
    counts = np.zeros((lineages, len(results.values)), np.int64)
    verdicts, games = np.full(lineages, Verdict.UNDECIDED, "U10"), np.zeros(lineages)
    going, answered = np.arange(lineages), np.zeros(lineages, bool)
    while len(going) and rounds < most:
        look = min(look, most)
        counts[going] += rng.multinomial(look - rounds, results.chances, len(going))
        verdicts[going], answered[going] = Counts(results.values, counts[going]).judged(rates)
        games[going] = look * results.games
        rounds, look, going = look, 2 * look, going[~answered[going]]
    return verdicts, games, answered


def simulate(results: Results, lineages: int, rng: Generator) -> Outcome:
    """All tries of so many lineages."""
    promoted, old = np.zeros(lineages, bool), np.zeros(lineages, bool)
    tries = []
    for number in range(1, TRIES + 1):
        going = np.flatnonzero(~promoted)
        tries.append(tried(results, ErrorRates(ALPHA).of_try(number), len(going), rng))
        promoted[going] = tries[-1][0] == Verdict.BETTER
        played = rng.multinomial(OLD_GAMES // results.games, results.chances, lineages)
        old |= played @ (results.values - 0.5) >= -1e-9
    verdicts, games, answered = (np.concatenate(column) for column in zip(*tries, strict=True))
    return Outcome(promoted, old, games, verdicts, answered)


def wilson(happened: Array) -> tuple[float, float]:
    """The 95 % interval of how often it happens (Wilson 1927), in per cent."""
    n, share = len(happened), float(happened.mean())
    middle = (share + NORMAL_95**2 / (2 * n)) / (1 + NORMAL_95**2 / n)
    half = NORMAL_95 * math.sqrt(share * (1 - share) / n + NORMAL_95**2 / (4 * n * n)) / (1 + NORMAL_95**2 / n)
    return round(100 * max(0.0, middle - half), 3), round(100 * min(1.0, middle + half), 3)


def case(name: str, better: bool, found: Outcome) -> dict[str, Any]:
    """A strength's line. Where the model is not better, the upper end of the interval has to keep the error rate."""
    low, high = wilson(found.promoted)
    shares = {str(one): round(100 * float((found.verdicts == one).mean()), 2) for one in Verdict}
    undecided, games = 100 * float((~found.answered).mean()), float(found.games.mean())
    return ledger.case(
        f"{name}: lineages promoted; {games:,.0f} games a try, {undecided:.3g} % without an answer",
        round(100 * float(found.promoted.mean()), 2) if better else high,
        "%",
        peers={PEER: round(100 * float(found.old.mean()), 2)},
        limit=None if better else 100 * ALPHA,
        goals={} if better else {"limit": 1.0},
        less_is_better=not better,
        seeds=[0],
        spread=(low, high),
        promoted=int(found.promoted.sum()),
        lineages=len(found.promoted),
        games_per_try=round(games, 1),
        percent_without_an_answer=round(undecided, 2),
        verdicts=shares,
    )


def kinds() -> list[tuple[str, float, Results]]:
    """The name, true strength and results of each case."""
    made = [
        (f"{elo:+.0f} Elo, {name}", elo, Results.of_pairs(elo, draws)) for name, draws in DRAWS.items() for elo in ELOS
    ]
    return made + [(f"{one:+.1f} sd, one seat", one, Results.of_returns(one)) for one in EFFECTS]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` simulates fewer."""
    lineages = QUICK_LINEAGES if args.quick else LINEAGES
    cases = []
    for name, strength, results in kinds():
        cases.append(case(name, strength > 0, simulate(results, lineages, np.random.default_rng(0))))
        print(f"{cases[-1]['name']}: {cases[-1]['spread']} %", file=sys.stderr, flush=True)
    return ledger.result("gate", cases, tries=TRIES, lineages=lineages)


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
