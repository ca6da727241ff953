"""Who learns against whom in a league, and what becomes of it. Decisions alone: nothing here plays, waits or writes.

    main              never starts again; meets itself, everybody (PFSP), and those that once beat it
    main-exploiter    meets the main agents as they are now, to find what beats them
    league-exploiter  meets everybody, to find what beats the league

What a learner has become is frozen now and then: the frozen model is a member that is met from then on. An exploiter
then starts again, so that it finds something else. (Roles and shares: Vinyals et al. 2019, AlphaStar.)
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError
from sparring.league.matchmaking import Weighting, WinRates, opponent_chances

Role = Literal["main", "main-exploiter", "league-exploiter"]
SELF = "self"  # the opponent's name in games against the learner's own newest weights
LOST = 0.1  # an exploiter that scores less against the main agents as they are now meets earlier ones first


@dataclass(frozen=True, slots=True)
class RoleRules:
    """How the learners of one role play and end; a table of league.toml."""

    count: int = 0  # learners of this role
    algo: str = ""  # as of `spar train --algo`; "": alphazero for main agents of a game that can be searched, else ppo
    selfplay: float = 0.0  # share of games against itself
    pfsp: float = 1.0  # share of games against members, by `weighting`
    verification: float = 0.0  # share of games against members that once beat it
    weighting: Weighting = "squared"
    freeze_every_steps: int = 500_000  # it is frozen after so many steps at the latest,
    freeze_at: float = 0.7  # or once it scores this much against each of its opponents;
    least_steps: int = 100_000  # but not before so many steps
    reset_chance: float = 0.0  # that it starts again when it was frozen
    start: Literal["main", "scratch"] = "scratch"  # with whose weights: those of a main agent, or none
    source: Literal["sim", "mix"] = "sim"  # as of `spar train --from`: mix adds what people played
    topology: str = ""  # as of `spar train --topology`; "": what suits the algorithm
    settings: dict[str, Any] = field(default_factory=dict)  # of the algorithm

    def __post_init__(self) -> None:
        shares = (self.selfplay, self.pfsp, self.verification)
        if min(shares) < 0 or abs(sum(shares) - 1.0) > 1e-6:
            wrong = f"selfplay = {shares[0]:g}, pfsp = {shares[1]:g}, verification = {shares[2]:g}"
            raise ConfigError(wrong, where="league.toml", do="Make the three shares add up to 1")
        if self.count < 0 or self.least_steps < 1 or self.freeze_every_steps < self.least_steps:
            wrong = f"count = {self.count}, least_steps = {self.least_steps}, freeze_every_steps = "
            do = "Count from 0, and keep 1 <= least_steps <= freeze_every_steps"
            raise ConfigError(f"{wrong}{self.freeze_every_steps}", where="league.toml", do=do)
        if not (0 <= self.freeze_at <= 1 and 0 <= self.reset_chance <= 1):
            wrong = f"freeze_at = {self.freeze_at:g}, reset_chance = {self.reset_chance:g}"
            raise ConfigError(wrong, where="league.toml", do="Give shares between 0 and 1")

    def algo_settings(self) -> tuple[str, ...]:
        """`settings` as the texts of --algo-set."""
        return tuple(f"{key}={json.dumps(value)}" for key, value in self.settings.items())


MAIN = RoleRules(count=1, selfplay=0.35, pfsp=0.5, verification=0.15)
MAIN_EXPLOITER = RoleRules(count=1, weighting="variance", reset_chance=1.0, start="main")
LEAGUE_EXPLOITER = RoleRules(weighting="linear", reset_chance=0.25)


@dataclass(frozen=True, slots=True)
class Learner:
    """What the league knows of one learner. Each time it starts again it has the next `generation`."""

    name: str  # "main-0"
    role: Role
    generation: int = 0
    steps: int = 0  # of this generation
    frozen_steps: int = 0  # how many of them it had when it was last frozen
    live: str = ""  # its newest model, in the pool; "" before the first
    run: str = ""  # the folder of its training run


@dataclass(frozen=True, slots=True)
class Member:
    """A player that does not change: a script ("script:NAME") or a frozen model, whose name is the model's id."""

    name: str
    role: Role | Literal["script", "guest"]  # "guest": a model that was there before the league
    learner: str = ""  # whose weights were frozen
    steps: int = 0
    frozen_at_ms: int = 0
    retired: bool = False
    judged: bool = False  # by the gate; of main agents alone


@dataclass(frozen=True, slots=True)
class Decision:
    """What a learner does next."""

    freeze: bool = False
    reset: bool = False
    why: str = ""


def decide(
    rules: RoleRules, learner: Learner, opponents: Mapping[str, float], rates: WinRates, rng: Generator
) -> Decision:
    """Whether the learner's newest weights are frozen now, and whether it then starts again."""
    since = learner.steps - learner.frozen_steps
    if since < rules.least_steps:
        return Decision()
    met = [name for name, chance in opponents.items() if name != SELF and chance > 0]
    beats = bool(met) and all(rates.known(name) and rates.of(name) >= rules.freeze_at for name in met)
    if not beats and since < rules.freeze_every_steps:
        return Decision()
    why = f"it scores {rules.freeze_at:.0%} or more against each opponent" if beats else f"{since:,} steps have passed"
    return Decision(True, bool(rng.random() < rules.reset_chance), why)


def after(learner: Learner, decision: Decision) -> Learner:
    """The learner once the decision was carried out."""
    if decision.reset:
        return replace(learner, generation=learner.generation + 1, steps=0, frozen_steps=0, run="", live="")
    return replace(learner, frozen_steps=learner.steps) if decision.freeze else learner


def opponents_of(
    rules: RoleRules, learner: Learner, members: Sequence[Member], others: Sequence[Learner], rates: WinRates
) -> dict[str, float]:
    """How often each opponent is met: members by name, other learners' newest weights by the learner's name, and SELF.

    A share for which there is nobody falls to PFSP, and where nobody is a member yet, to self-play.
    """
    active = [one.name for one in members if not one.retired]
    if learner.role == "main-exploiter":
        return _against_mains(rules, learner, members, others, rates)
    beaten_by = [name for name in active if rates.once_lost(name)]
    verification = rules.verification if beaten_by else 0.0
    selfplay = rules.selfplay if active else 1.0
    chances: dict[str, float] = {SELF: selfplay} if selfplay else {}
    for names, share in ((active, 1.0 - selfplay - verification), (beaten_by, verification)):
        if names and share > 0:
            _add(chances, names, share, rates, rules.weighting)
    return chances


def _against_mains(
    rules: RoleRules, learner: Learner, members: Sequence[Member], others: Sequence[Learner], rates: WinRates
) -> dict[str, float]:
    """The main agents as they are now; earlier ones first where it does not score at all against those."""
    mains = [one.name for one in others if one.role == "main" and one.live and one.name != learner.name]
    earlier = [one.name for one in members if one.role == "main" and not one.retired]
    hopeless = bool(mains) and all(rates.known(name) and rates.of(name) < LOST for name in mains)
    met = earlier if earlier and (hopeless or not mains) else mains
    chances: dict[str, float] = {}
    if met:
        _add(chances, met, 1.0 - rules.selfplay, rates, rules.weighting)
    if not met or rules.selfplay:
        chances[SELF] = rules.selfplay if met else 1.0
    return chances


def _add(chances: dict[str, float], names: Sequence[str], share: float, rates: WinRates, weighting: Weighting) -> None:
    drawn = opponent_chances(np.array([rates.of(name) for name in names]), weighting)
    for name, chance in zip(names, drawn.tolist(), strict=True):
        chances[name] = chances.get(name, 0.0) + share * chance


def to_retire(members: Sequence[Member], most: int, rates: Sequence[WinRates], nash: Mapping[str, float]) -> list[str]:
    """Frozen models that are no longer met, so that `most` stay.

    Those first that have the smallest share in the league's Nash mixture (`nash`), since copies of a strategy divide
    one share and a rare strategy has a whole one; then those that every main agent (`rates` of each) beats most
    clearly. Scripts and the newest of every learner stay.
    """
    models = [one for one in members if one.role != "script" and not one.retired]
    newest = {one.learner: one.name for one in sorted(models, key=lambda one: one.frozen_at_ms) if one.learner}
    free = [one for one in models if one.name not in newest.values()]
    beaten = {one.name: min((each.of(one.name) for each in rates), default=0.5) for one in free}
    free.sort(key=lambda one: (round(nash.get(one.name, 0.0), 3), -beaten[one.name], one.frozen_at_ms))
    return [one.name for one in free[: max(0, len(models) - most)]]
