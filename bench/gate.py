"""How often the promotion gate is wrong, and how many games it needs: simulated promotions of known strength.

    spar bench gate [--quick]

A lineage is tried 20 times against the champion, with models of one true strength (Elo above the champion; a tenth of
all games is drawn), or of one true return (standard deviations above the champion's). Its first promotion ends it. The
peer is the gate that it replaced: at least half of the points in 200 games, or at least the champion's mean return.
Goal: of 10,000 lineages that are not better (1,000 of those judged by returns) at most 5 % get a champion.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from bench import ledger
from numpy.random import Generator

from sparring.league.gate import ALPHA, BATCH, SCALE, Results
from sparring.league.sequential_test import ErrorRates, Verdict, judge
from sparring.wire.chunk import Array

LINEAGES, RETURN_LINEAGES, QUICK_LINEAGES, TRIES, MOST_ROUNDS = 10_000, 1_000, 50, 20, 1_000
DRAWS, OLD_GAMES = 0.1, 200
ELOS = (-100.0, -20.0, 0.0, 20.0, 50.0, 100.0, 200.0)
EFFECTS = (-0.2, 0.0, 0.2, 0.5, 1.0)
Draw = Callable[[int, Generator], Results]


def games_of(elo: float) -> Draw:
    """Pairs of games of a player that is so much stronger."""
    score = 1.0 / (1.0 + 10.0 ** (-elo / 400.0))
    chances = [score - DRAWS / 2, DRAWS, 1.0 - score - DRAWS / 2]

    def draw(rounds: int, rng: Generator) -> Results:
        scores = rng.choice([1.0, 0.5, 0.0], p=chances, size=(rounds, 2)).mean(axis=1)
        return Results(1.0, [scores])

    return draw


def returns_of(effect: float) -> Draw:
    """Returns of a player whose mean is so many standard deviations higher, skewed as those of many games are."""

    def draw(rounds: int, rng: Generator) -> Results:
        returns = rng.exponential(1.0, (2, rounds))
        returns[0] += effect
        return Results(SCALE, returns=[returns])

    return draw


def lineage(draw: Draw, rng: Generator) -> tuple[bool, int, bool]:
    """Whether one of its tries is promoted, the rounds that the first try took, and whether the old gate promotes."""
    first, old = 0, False
    for number in range(1, TRIES + 1):
        rates, drawn = ErrorRates(ALPHA).of_try(number), draw(MOST_ROUNDS, rng)
        results = drawn.judged()
        old |= bool(_old(drawn).mean() >= 0)
        rounds, over, verdict = BATCH // 2, False, Verdict.UNDECIDED
        while rounds < MOST_ROUNDS and not over:
            rounds = min(2 * rounds, MOST_ROUNDS)
            verdict, over = judge(results[:rounds], rates)
        first = first or rounds
        if verdict is Verdict.BETTER:
            return True, first, old
    return False, first, old


def _old(drawn: Results) -> Array:
    if drawn.returns:
        returns: Array = drawn.returns[0][:, :OLD_GAMES]
        return returns[0] - returns[1]
    return drawn.scores[0][: OLD_GAMES // 2] - 0.5


def _percent(happened: Array) -> float:
    """None at all counts as one."""
    return round(100 * max(1.0, float(happened.sum())) / len(happened), 2)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` simulates fewer."""
    cases = []
    kinds = [(f"{elo:+.0f} Elo", games_of(elo), 2, elo <= 0, LINEAGES) for elo in ELOS]
    kinds += [(f"{one:+.1f} sd of return", returns_of(one), 1, one <= 0, RETURN_LINEAGES) for one in EFFECTS]
    for name, draw, games, not_better, lineages in kinds:
        rng, lineages = np.random.default_rng(0), QUICK_LINEAGES if args.quick else lineages
        promoted, rounds, old = np.array([lineage(draw, rng) for _ in range(lineages)], np.float64).T
        cases.append(
            ledger.case(
                f"{name}: lineages promoted within {TRIES} tries, {games * rounds.mean():,.0f} games in the first",
                _percent(promoted),
                "%",
                peers={"at least half in 200 games": _percent(old)},
                limit=100 * ALPHA if not_better else None,
                goals={"limit": 1.0} if not_better else {},
                less_is_better=not_better,
                seeds=[0],
            )
        )
    return ledger.result("gate", cases, tries=TRIES)


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
