"""Strengths to sell: ten steps between random play and the champion, evenly spaced in rating, made of league members.

A step is a member, or where none has its rating the next stronger one with a share of random moves. The more of them
the weaker it is, but by how much nobody can compute; so the steps play each other, and their shares change until the
measured ratings are even. (Moves of a weaker member in between were tried: two models that take turns may be weaker
than either, so ratings did not rise with the share.)

Each style of the league (styles.py) has a ladder too: its members, weakened until they are rated as the steps of the
first ladder are, so that a strength means the same in all of them.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from sparring.acting.evaluate import evaluate
from sparring.acting.players import Sampling, forward_of
from sparring.errors import Missing, Refused
from sparring.games.protocol import Columns
from sparring.games.spec import GameSpec
from sparring.league.matches import MatchFile
from sparring.league.payoff import Payoff
from sparring.league.ratings import ELO, NORMAL_95, PRIOR_ELO, Rating, elo_ratings
from sparring.league.standings import ANCHOR, Ladder
from sparring.league.styles import FEWEST, MEMBERS, evenly, features_of, find_styles, watch
from sparring.nets.forward import Forward
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId
from sparring.wire.model import Model
from sparring.wire.strengths import STEPS, Strengths, StrengthStep, Style

ROUNDS = 8  # of measuring and changing at most
PAIR_GAMES, LAST_PAIR_GAMES = 1_000, 2_000  # between two steps in a round, and in the last one, which rates them
STYLE_ROUNDS, STYLE_GAMES, LAST_STYLE_GAMES = 4, 400, 1_000  # of a style's step against each neighbour of its place
NEAR = 2  # a step plays those at most so many steps away: against others nearly every result is the same
EVEN = 0.2  # of a gap: no step is further from its target
DAMPED = 0.6  # of the change that would be right if a measured rating had no noise
PURE = 0.03  # a share of random moves below this is none
UNRATED_ELO = 200.0  # so far below the weakest member is random play, where nobody met it
LEAST = 0.05  # share of the model's moves between the weakest step and the second


@dataclass(frozen=True, slots=True)
class Rated:
    """A member and its Elo."""

    member: str
    elo: float


@dataclass(frozen=True, slots=True)
class Place:
    """What a step is made of: one of the models, the weakest first, and the share of moves that are its own."""

    model: int
    share: float


def models_of(members: Sequence[Rated], top: str, steps: int = STEPS) -> list[Rated]:
    """The models that a ladder is made of, weakest first and `top` last: above random play (Elo 0), and rising by half
    a step's gap at least."""
    best = next(one for one in members if one.member == top)
    gap, found = best.elo / (steps - 1), list[Rated]()
    for one in sorted(members, key=lambda one: one.elo):
        least = found[-1].elo + gap / 2 if found else gap / 2
        if one.member != top and least <= one.elo <= best.elo - gap / 2:
            found.append(one)
    return [*found, best]


def first_places(elos: Sequence[float], steps: int = STEPS, top: float | None = None) -> list[Place]:
    """Where a ladder up to the rating `top` (of the last model) begins to be measured: of each step the weakest model
    that is strong enough, and the share of its moves that its rating suggests. `elos` are those of the models."""
    places = [Place(0, 0.0)]
    for target in np.linspace(0.0, elos[-1] if top is None else top, steps)[1:-1].tolist():
        model = next(at for at, elo in enumerate(elos) if elo >= target - 1e-9 or at == len(elos) - 1)
        places.append(_place(model, target / elos[model]))
    return [*places, Place(len(elos) - 1, 1.0)]


def moved(place: Place, elo: float, target: float, elos: Sequence[float]) -> Place:
    """The place that is nearer to the target, after this rating was measured: Elo grows with the share, from 0."""
    share = place.share + DAMPED * (target - elo) * place.share / max(elo, 1.0)
    share = min(max(share, place.share / 2, LEAST), place.share * 2)
    if share <= 1.0 + PURE or place.model == len(elos) - 1:
        return _place(place.model, share)
    return _place(place.model + 1, min(1.0, share * elos[place.model] / elos[place.model + 1]))


def _place(model: int, share: float) -> Place:
    return Place(model, 1.0 if share > 1.0 - PURE else max(share, LEAST))


class MixedForward:
    """A network of whose moves a share is its own, and the others are random. Not for two threads at once."""

    def __init__(self, network: Forward, share: float, rng: Generator) -> None:
        self.spec, self._network, self._share, self._rng = network.spec, network, share, rng

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        """ "logits" of whoever moves."""
        logits = self._network(observation)["logits"]
        own = self._rng.random((len(logits), 1)) < self._share
        return {"logits": np.where(own, logits, self._rng.random(logits.shape))}


@dataclass(frozen=True, slots=True)
class LadderMaker:
    """Makes the ladder of one game; `tell` is called with a sentence after each round."""

    spec: GameSpec
    networks: Sequence[Forward | Sampling]  # of the models, weakest first
    elos: Sequence[float]  # of the models, above random play
    seed: int = 0
    tell: Callable[[str], None] = lambda sentence: None

    def made(self, steps: int = STEPS) -> tuple[list[Place], list[Rating], int]:
        """The places whose ratings came nearest to even ones, those ratings, and how many games were played."""
        places = first_places(self.elos, steps)
        games, best, least = 0, places, np.inf
        for number in range(ROUNDS):
            ratings, played = self.measured(places, PAIR_GAMES, number)
            elos, games = [one.elo for one in ratings], games + played
            targets = np.linspace(elos[0], elos[-1], steps).tolist()
            gap = (elos[-1] - elos[0]) / (steps - 1)
            worst = max(abs(elo - target) for elo, target in zip(elos, targets, strict=True)) / max(gap, 1e-9)
            self.tell(f"round {number + 1}: steps of {gap:.0f} Elo, the worst is {worst:.0%} of one off")
            if worst < least:
                best, least = places, worst
            if worst < EVEN:
                break
            inner = zip(places[1:-1], elos[1:-1], targets[1:-1], strict=True)
            places = [places[0], *(moved(at, elo, target, self.elos) for at, elo, target in inner), places[-1]]
        ratings, played = self.measured(best, LAST_PAIR_GAMES, ROUNDS)
        return best, ratings, games + played

    def measured(self, places: Sequence[Place], pair_games: int, salt: int) -> tuple[list[Rating], int]:
        """The ratings of players at these places, the weakest's Elo being 0, by games between near ones."""
        names = tuple(str(at) for at in range(len(places)))
        wins, draws = np.zeros((len(names), len(names))), np.zeros((len(names), len(names)))
        pairs = [(a, b) for a in range(len(names)) for b in range(a + 1, min(a + NEAR + 1, len(names)))]
        for a, b in pairs:
            seed = 10_000 * self.seed + 1_000 * salt + 20 * a + b
            one, two = (self._player(places[at], seed) for at in (a, b))
            played = evaluate(self.spec.id, one, episodes=pair_games, seed=seed, against=two)
            wins[a, b], wins[b, a] = played.wins or 0, played.losses or 0
            draws[a, b] = draws[b, a] = played.draws or 0
        rated = {one.member: one for one in elo_ratings(Payoff(names, wins, draws))}
        zero = rated["0"].elo
        found = [replace(one, elo=one.elo - zero, low=one.low - zero, high=one.high - zero) for one in rated.values()]
        return sorted(found, key=lambda one: int(one.member)), pair_games * len(pairs)

    def made_beside(
        self, main: "LadderMaker", steps: Sequence[Place], ratings: Sequence[Rating]
    ) -> tuple[list[Place], list[Rating], int]:
        """The places at which these models are rated as the `steps` of another ladder are, or as near as they come;
        their ratings, and how many games were played."""
        places, games = first_places(self.elos, len(steps), main.elos[-1]), 0
        for number in range(STYLE_ROUNDS):
            found, played = self._measured_beside(main, steps, ratings, places, STYLE_GAMES, number)
            games += played
            inner = zip(places[1:-1], found[1:-1], ratings[1:-1], strict=True)
            between = [moved(at, one.elo, target.elo, self.elos) for at, one, target in inner]
            places = [places[0], *between, places[-1]]
        found, played = self._measured_beside(main, steps, ratings, places, LAST_STYLE_GAMES, STYLE_ROUNDS)
        return places, found, games + played

    def _measured_beside(
        self,
        main: "LadderMaker",
        steps: Sequence[Place],
        ratings: Sequence[Rating],
        places: Sequence[Place],
        pair_games: int,
        salt: int,
    ) -> tuple[list[Rating], int]:
        found, played = [ratings[0]], 0  # random play is the same in all ladders
        for at, place in enumerate(places[1:], 1):
            if place == places[at - 1]:  # nobody is stronger
                found.append(found[-1])
                continue
            near, points = [k for k in (at - 1, at, at + 1) if k < len(steps)], 0.0
            for k in near:
                seed = 10_000 * self.seed + 5_000 + 1_000 * salt + 20 * at + k
                one, two = self._player(place, seed), main._player(steps[k], seed + 500)
                games = evaluate(self.spec.id, one, episodes=pair_games, seed=seed, against=two)
                points += (games.wins or 0) + (games.draws or 0) / 2
            found.append(rating_against([ratings[k].elo for k in near], points, pair_games, str(at)))
            played += pair_games * len(near)
        return found, played

    def _player(self, place: Place, seed: int) -> MixedForward | Sampling:
        rng = np.random.default_rng([seed, place.model, round(1e6 * place.share)])
        network = self.networks[place.model]
        if isinstance(network, Sampling):
            return Sampling(MixedForward(network.forward, place.share, rng))
        return MixedForward(network, place.share, rng)


def rating_against(elos: Sequence[float], points: float, games: int, member: str = "") -> Rating:
    """The rating by the points from so many games against each of several opponents, whose ratings are taken as true;
    with the prior of `elo_ratings` about their mean."""
    known, prior = np.array(elos) / ELO, (ELO / PRIOR_ELO) ** 2
    centre = strength = float(known.mean())
    for _ in range(50):  # Newton's method, with steps that cannot overshoot far
        chance = 1.0 / (1.0 + np.exp(known - strength))
        information = games * float((chance * (1 - chance)).sum()) + prior
        step = (points - games * float(chance.sum()) - prior * (strength - centre)) / information
        strength += min(max(step, -1.0), 1.0)
        if abs(step) < 1e-9:
            break
    elo, doubt, played = ELO * strength, NORMAL_95 * ELO / information**0.5, games * len(elos)
    return Rating(member, elo, elo - doubt, elo + doubt, played, points / played)


def make_strengths(
    registry: Registry, data: Path, spec: GameSpec, *, seed: int = 0, tell: Callable[[str], None] = lambda _: None
) -> Strengths:
    """The ladder of a game's league, measured by games; Missing or Refused where there is nothing to make it of."""
    where, do = (
        f"strengths of {spec.id}",
        f"Play a league, longer if there was one: `spar league {shlex.quote(spec.id)}`",
    )
    if any(seat.action.kind not in ("discrete", "multi-discrete") for seat in spec.seats):
        raise Refused("its actions are no choices", where=where, do="Sell the champion alone")
    if len(spec.kinds) > 1:
        raise Refused("its seats are of several kinds", where=where, do="Sell the champions of its kinds alone")
    rated, models = _sellable(registry, data, spec)
    if not models:
        raise Missing("no member of a league was rated that could be sold", where=where, do=do)
    signed = registry.champion(spec.id, spec.version)
    champion = "" if signed is None else str(verify(signed, registry.trust).model)
    top = champion if champion in models else max(rated, key=lambda one: one.elo).member
    chosen = models_of(rated, top)
    if chosen[-1].elo <= 0:
        raise Refused(f"its best model, {top[:12]}, is not rated above random play", where=where, do=do)
    tell(f"{len(chosen)} of {len(rated)} models make the ladder, the strongest is {top[:12]}")
    networks = [_network(models[one.member]) for one in chosen]
    maker = LadderMaker(spec, networks, [one.elo for one in chosen], seed, tell)
    places, ratings, games = maker.made()
    styles = list[Style]()
    for name, means, alike in _styles(spec, models, rated, chosen[-1], seed, tell):
        few = _below(alike, chosen[-1])
        own = LadderMaker(spec, [_network(models[one.member]) for one in few], [one.elo for one in few], seed)
        steps = _steps(few, *own.made_beside(maker, places, ratings)[:2])
        ids = tuple(ModelId(one.member) for one in alike)
        styles.append(Style(name=name, means=means, members=ids, steps=steps))
        tell(f"style {name}: {len(alike)} members, up to {steps[-1].elo:+.0f} Elo; {means}")
    return Strengths(
        game=spec.id,
        version=spec.version,
        spec=spec.hash,
        games=games,
        issued_at_ms=int(time.time() * 1000),
        steps=_steps(chosen, places, ratings),
        styles=tuple(styles),
    )


def _sellable(registry: Registry, data: Path, spec: GameSpec) -> tuple[list[Rated], dict[str, Model]]:
    """The members of the game's league that can be sold, with their Elo above random play, and their models."""
    with MatchFile(data, spec.id) as file:
        matches = file.all()
    elos, models = dict[str, float](), dict[str, Model]()
    for one in Ladder().standings(matches).ladder if matches else ():
        if ":" not in one.member and (model := _usable(registry, ModelId(one.member), spec)) is not None:
            models[one.member] = model
        if one.member in models or one.member == ANCHOR:
            elos[one.member] = one.elo
    random_elo = elos.get(ANCHOR, min(elos.values(), default=0.0) - UNRATED_ELO)
    return [Rated(member, elos[member] - random_elo) for member in models], models


def _network(model: Model) -> Forward | Sampling:
    """What is judged is what is played: a model that samples does so in its ladder's games, too."""
    return Sampling(forward_of(model)) if model.card.samples else forward_of(model)


def _steps(models: Sequence[Rated], places: Sequence[Place], ratings: Sequence[Rating]) -> tuple[StrengthStep, ...]:
    return tuple(
        StrengthStep(
            elo=round(rating.elo, 1),
            low=round(rating.low, 1),
            high=round(rating.high, 1),
            model=ModelId(models[place.model].member),
            share=round(place.share, 4),
        )
        for place, rating in zip(places, ratings, strict=True)
    )


def _styles(
    spec: GameSpec, models: dict[str, Model], rated: Sequence[Rated], top: Rated, seed: int, tell: Callable[[str], None]
) -> list[tuple[str, str, list[Rated]]]:
    """Name, meaning and members of each style of the members that are better than random play."""
    better = [one for one in rated if one.elo >= top.elo / (STEPS - 1) / 2]
    better.sort(key=lambda one: (one.elo, one.member))
    members = [better[at] for at in evenly(len(better), MEMBERS)]
    if len(members) < FEWEST:
        tell(f"no styles: {len(members)} members are better than random play, {FEWEST} or more are needed")
        return []
    watched = [watch(spec, [models[one.member] for one in members], 2 * seed + again) for again in (0, 1)]
    (features, values), (_, fresh) = (features_of(spec, one) for one in watched)
    found, separate = find_styles(features, values, fresh, [one.elo for one in members])
    if not found:
        why = f"do not differ in groups that could be named (silhouette {separate:.2f})"
        tell(f"one style: {len(members)} members {why}")
    return [(one.name, one.means, [members[at] for at in one.members]) for one in found]


def _below(members: Sequence[Rated], top: Rated) -> list[Rated]:
    """The models of a style's ladder: none is stronger than the champion, unless all are."""
    weaker = [one for one in members if one.elo <= top.elo] or [min(members, key=lambda one: one.elo)]
    return models_of(weaker, max(weaker, key=lambda one: one.elo).member)


def _usable(registry: Registry, model: ModelId, spec: GameSpec) -> Model | None:
    """The member's model, if it is here, fits the game, and neither remembers nor sees several frames."""
    try:
        found = registry.fetch(model)
    except Missing:
        return None
    fits = found.card.spec == spec.hash and found.card.network.memory is None and spec.frame_stack == 1
    return found if fits else None
