"""The gate: who becomes champion. A model replaces the champion where it is shown to be better.

With opponents the two play each other, from every seat of openings that are drawn for this gate alone; without, both
play the same fresh seeds and their returns are compared, one by one. Where there is no champion yet, the model must be
better than random play. After each batch of games `sequential_test.judge` says whether they are enough: a clear
difference takes tens of games, a small one as many as `registry.gate_episodes` allows.

Where seats are of several kinds (GameSpec.kinds) opponents are no measure of each other. Returns are compared then, in
the same seats on the same fresh seeds: those of the new models of one side (games/seat_kinds.py), and those of the
champions that they would replace, both with the champions in all other seats. So they are, too, from the second batch
on where every round of the first was even because the seat decides who wins, whoever has it.

All tries of one lineage (a model and the models that it was trained from) share one error rate: the chance that any of
them becomes champion without being better is at most `ALPHA`, however often it is tried.
"""

import math
import secrets
import time
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from sparring.acting.evaluate import Evaluation, evaluate, evaluate_beside
from sparring.acting.players import Lineup, Player, strongest
from sparring.config import DEFAULT, Config
from sparring.errors import Missing
from sparring.games.catalogue import spec_of
from sparring.games.spec import GameSpec
from sparring.league.sequential_test import EVEN, ErrorRates, Verdict, elo_of, interval, judge
from sparring.registry.protocol import Evidence
from sparring.registry.registry import Registry
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId
from sparring.wire.model import Model

ALPHA = 0.05  # of one lineage
CONFIDENCE = 0.95  # of the intervals that are shown
FIRST_TICKS = 500_000  # of the first batch, if all its games last as long as they can
GATE_TICKS = 200_000  # that were played: no further batch after them
FEWEST = 10  # games that say anything
SHOWN, SHOWN_SEED = 200, 0  # games against the game's strongest script, whose mean is shown: the same for all models
BATCH = 32  # rounds of seats in the first batch; each following one has as many as all before
SCALE = 3.0  # differences of returns are limited to so many standard deviations,
LEAST_DEVIATION = 0.1  # which are taken to be at least this share of the mean


@dataclass(slots=True)
class Results:
    """What two players came to, round by round, as numbers from 0 to 1; 0.5 is even."""

    limit: float  # of a difference of returns; one as large counts as a game that was won
    scores: list[Array] = field(default_factory=list)  # float64 of each batch
    returns: list[Array] = field(default_factory=list)  # [2, rounds] of each batch: the model's and the other's
    counts: Array = field(default_factory=lambda: np.zeros(3, np.int64))  # won, drawn, lost
    digests: list[Array] = field(default_factory=list)

    def add_games(self, played: Evaluation, seats: int) -> None:
        """Games against each other; the episodes of one round of seats are one result."""
        assert played.beaten is not None
        assert played.digests is not None
        self.scores.append(played.beaten[: len(played.beaten) // seats * seats].reshape(-1, seats).mean(axis=1))
        self.counts += (played.wins or 0, played.draws or 0, played.losses or 0)
        self.digests.append(played.digests)

    def add_returns(self, ours: Array, theirs: Array) -> None:
        """Returns on the same seeds."""
        both = min(len(ours), len(theirs))
        self.returns.append(np.stack([ours[:both], theirs[:both]]).astype(np.float64))

    def one_side_always_wins(self) -> bool:
        """Whether every round was even by as many games won as lost: it is the seat that wins, not the player."""
        rounds = np.concatenate(self.scores) if self.scores else np.zeros(0)
        return len(rounds) >= FEWEST and self.counts[0] > 0 and bool((rounds == EVEN).all())

    def judged(self) -> Array:
        """The results that the test sees: returns in the same seats, once any were compared."""
        if not self.returns:
            return np.concatenate(self.scores) if self.scores else np.zeros(0)
        ours, theirs = np.concatenate(self.returns, axis=1)
        results: Array = np.clip((ours - theirs) / self.limit, -1.0, 1.0) / 2 + EVEN
        return results


@dataclass(frozen=True, slots=True)
class GateLimits:
    """How many games the gate plays at most. After so many `ticks` it plays no further batch: 2,000 games of Atari
    would take ten hours."""

    episodes: int
    ticks: float = GATE_TICKS

    @classmethod
    def from_config(cls, config: Config) -> "GateLimits":
        """`registry.gate_episodes`, however long they last where it was set."""
        said = config.origin("registry.gate_episodes") != DEFAULT
        return cls(config.registry.gate_episodes, math.inf if said else GATE_TICKS)

    def first(self, spec: GameSpec) -> int:
        """The episodes of the first batch: fewer where a game may be long."""
        return min(self.episodes, BATCH * len(spec.seats), max(FEWEST, FIRST_TICKS // spec.max_ticks))


def tries_before(registry: Registry, model: Model) -> int:
    """How often the gate has tried this model's lineage. An ancestor that it never tried (it could not be measured, or
    a person promoted it) is passed by for its own parents."""
    most, seen, waiting = _tries(registry, model.id), set[ModelId](), list(model.card.lineage.parents)
    while waiting:
        if (one := waiting.pop()) in seen:
            continue
        seen.add(one)
        most = max(most, tries := _tries(registry, one))
        if not tries:
            try:
                waiting += registry.card(one).lineage.parents
            except Missing:  # it was deleted
                continue
    return most


def _tries(registry: Registry, model: ModelId) -> int:
    found = registry.evidence(model)
    return 0 if found is None else found.tries


def play_shown_games(
    model: Model | Lineup, limits: GateLimits, *, deadline: float = math.inf
) -> tuple[Evaluation, Evidence]:
    """How the model plays against the game's strongest script, on seeds that are the same for all models; the evidence
    has no verdict. Missing where fewer than FEWEST games end by the `deadline` (of time.monotonic)."""
    game = model.game if isinstance(model, Lineup) else model.card.game
    rival = strongest(game)
    shown = min(limits.episodes, SHOWN, max(FEWEST, FIRST_TICKS // spec_of(game).max_ticks))
    alone = _enough(evaluate(game, model, episodes=shown, seed=SHOWN_SEED, against=rival, deadline=deadline), shown)
    against = None if rival is None else f"script:{rival}"
    return alone, Evidence(episodes=len(alone.returns), mean=alone.mean, sd=alone.sd, against=against)


def play_gate_games(
    model: Model | Lineup,
    incumbent: Model | Lineup | None,
    limits: GateLimits,
    *,
    tries: int = 0,
    seed: int | None = None,
    deadline: float = math.inf,
) -> tuple[Evaluation, Evidence]:
    """How the model plays against the game's strongest script, and the evidence for or against its promotion.

    Its games have seeds of their own (`seed` repeats those of an earlier gate). It plays fewer by the `deadline` (of
    time.monotonic); Missing below FEWEST. `tries` is how often this lineage was tried before. A Lineup has the models
    of one side in its own seats; the champions are another, and the evidence names none of them.
    """
    game = model.game if isinstance(model, Lineup) else model.card.game
    spec = spec_of(game)
    seed = secrets.randbits(48) + 1 if seed is None else seed
    alone, said = play_shown_games(model, limits, deadline=(time.monotonic() + deadline) / 2)
    said = replace(said, incumbent=incumbent.id if isinstance(incumbent, Model) else None, tries=tries + 1, seed=seed)
    if not math.isfinite(alone.mean):
        return alone, replace(said, verdict=Verdict.UNDECIDED)
    rates = ErrorRates(ALPHA).of_try(tries + 1)
    other: Player = "random" if incumbent is None else incumbent
    results = Results(SCALE * max(alone.sd, LEAST_DEVIATION * abs(alone.mean)) or 1.0)  # other games than it judges
    verdict = _Games(model, other, limits, seed, deadline).play(results, rates)
    said = replace(said, verdict=verdict)
    if results.returns:
        ours, theirs = np.concatenate(results.returns, axis=1)
        means = {"mean": float(ours.mean()), "sd": float(ours.std())}
        theirs_are = {"incumbent_mean": float(theirs.mean()), "incumbent_sd": float(theirs.std())}
        beside = None
        if isinstance(incumbent, Model) and len(spec.seats) > 1 and not spec.has_rivals:  # a team
            shown = len(alone.returns)
            mixed = evaluate_beside(game, model, incumbent, episodes=shown, seed=seed, deadline=deadline)
            beside = mixed.mean if len(mixed.returns) else None
        said = replace(said, episodes=len(ours), **means, **theirs_are, beside_incumbent=beside)
        if spec.has_rivals:  # whose returns were not those against a script
            said = replace(said, against=f"model:{incumbent.id}" if isinstance(incumbent, Model) else None)
    if results.scores:
        wins, draws, losses = map(int, results.counts)
        distinct = len(np.unique(np.concatenate(results.digests)))
        low, high = map(elo_of, interval(np.concatenate(results.scores), 1 - CONFIDENCE))
        games = {"wins": wins, "draws": draws, "losses": losses, "distinct": distinct}
        said = replace(said, **games, elo_low=low, elo_high=high)
    return alone, said


@dataclass(frozen=True, slots=True)
class _Games:
    """The games that one gate may play: the model against, or beside, the other."""

    model: Model | Lineup
    other: Player
    limits: GateLimits
    seed: int
    deadline: float

    def play(self, results: Results, rates: ErrorRates) -> Verdict:
        """Play batches until the test is decided, the games are played or the time is over."""
        model = self.model
        spec = spec_of(model.game if isinstance(model, Lineup) else model.card.game)
        verdict, over = Verdict.UNDECIDED, False
        paired = isinstance(model, Lineup) or not spec.has_rivals
        most, batch, begun, ticks, wanted = self.limits.episodes, 0, 0, 0, self.limits.first(spec)
        while begun < most and ticks < self.limits.ticks and not over:
            if batch and time.monotonic() >= self.deadline:
                break
            asked = min(wanted, most - begun)
            if spec.has_rivals:
                seats = len(model.own if isinstance(model, Lineup) else spec.seats)
                asked = -(-asked // seats) * seats  # whole rounds
            ticks += self._batch(results, spec, asked, batch, paired=paired)
            verdict, over = judge(results.judged(), rates)
            paired = paired or results.one_side_always_wins()  # judged by the games that follow alone
            batch, begun = batch + 1, begun + asked
            wanted = begun
        return verdict

    def _batch(self, results: Results, spec: GameSpec, asked: int, batch: int, *, paired: bool) -> int:
        """Play one batch into the results, `paired`: each with the same others; the ticks that the model played."""
        seed, now = self.seed + batch, time.monotonic()
        check = _enough if batch == 0 else (lambda played, asked: played)
        if not paired:
            met = evaluate(spec.id, self.model, episodes=asked, seed=seed, against=self.other, deadline=self.deadline)
            results.add_games(check(met, asked), len(spec.seats))
            return met.ticks
        middle, rest = (now + self.deadline) / 2, self.other if spec.has_rivals else None
        ours = check(evaluate(spec.id, self.model, episodes=asked, seed=seed, against=rest, deadline=middle), asked)
        end = self.deadline
        theirs = check(evaluate(spec.id, self.other, episodes=asked, seed=seed, against=rest, deadline=end), asked)
        seats = len(self.model.own if isinstance(self.model, Lineup) else spec.seats) if spec.has_rivals else 1
        results.add_returns(_by_round(ours.returns, seats), _by_round(theirs.returns, seats))
        return ours.ticks


def _by_round(returns: Array, seats: int) -> Array:
    """The mean of each whole round of seats."""
    means: Array = returns[: len(returns) // seats * seats].reshape(-1, seats).mean(axis=1)
    return means


def _enough(played: Evaluation, asked: int) -> Evaluation:
    if (ended := len(played.returns)) < min(FEWEST, asked):
        wrong = f"{ended} of its {asked} games ended in the time that was left"
        raise Missing(wrong, where="promotion gate", do="Train for more --minutes, or lower registry.gate_episodes")
    return played


def passed(evidence: Evidence) -> bool:
    """Whether the model may become champion."""
    return evidence.verdict == Verdict.BETTER


def sentence(evidence: Evidence) -> str:
    """What the gate found, for people: its verdict, and by what games."""
    other = "random play" if evidence.incumbent is None else "the champion"
    if not (math.isfinite(evidence.mean) and math.isfinite(evidence.sd)):
        return f"its return is {evidence.mean} ± {evidence.sd}, which is not finite"
    words = {
        Verdict.BETTER: f"better than {other}",
        Verdict.NOT_WORSE: f"not worse than {other}, and not shown to be better",
        Verdict.NOT_BETTER: f"not better than {other}, or hardly",
        Verdict.WORSE: f"worse than {other}",
        Verdict.UNDECIDED: f"undecided whether it is better than {other}",
    }[Verdict(evidence.verdict)]
    if evidence.wins is None or evidence.draws is None or evidence.losses is None:
        theirs = evidence.incumbent_mean
        beside = f"it returns {evidence.mean:.4g} beside {theirs:.4g}" if theirs is not None else "it was not compared"
        mixed = evidence.beside_incumbent
        team = "" if mixed is None else f"; {mixed:.4g} with {other} in the other seats of its team"
        return f"{words}: {beside} in {evidence.episodes} episodes on the same seeds{team}"
    games = evidence.wins + evidence.draws + evidence.losses
    played = f"{evidence.wins} won, {evidence.draws} drawn, {evidence.losses} lost"
    if evidence.incumbent_mean is not None:
        beside = f"it returns {evidence.mean:.4g} beside {evidence.incumbent_mean:.4g} against {other}"
        return f"{words}: {beside}, in the same seats; the seat decided who won ({played})"
    elo = f"{_elo(evidence.elo_low)} to {_elo(evidence.elo_high)} Elo"
    return f"{words}: {elo} in {games} games, {evidence.distinct} of them distinct ({played})"


def _elo(value: float | None) -> str:
    return "?" if value is None else f"{value:+.0f}"
