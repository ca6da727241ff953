"""A model stands for champion: it plays the gate's games, and is promoted where they show that it is better.
One that must not be promoted plays the games alone whose mean is shown.

Models of different kinds of seats stand side by side (games/seat_kinds.py): those of one side are judged together, and
each becomes the champion of its seats.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as with_fields

from sparring.acting.evaluate import Evaluation
from sparring.acting.players import Lineup, champion_model, champions_of
from sparring.errors import Missing
from sparring.games.catalogue import spec_of
from sparring.games.seat_kinds import sides
from sparring.league.gate import GateLimits, passed, play_gate_games, play_shown_games, sentence, tries_before
from sparring.registry.protocol import Evidence
from sparring.registry.registry import Registry
from sparring.wire.model import Card, Model

NOT_ASKED = "not promoted, as asked"  # the verdict without the gate


@dataclass(frozen=True, slots=True)
class Standing:
    """What the gate found of a model."""

    evaluation: Evaluation | None  # None: the game has no simulator here
    promoted: bool
    verdict: str  # a sentence


def stand_for_promotion(
    registry: Registry, models: Sequence[Model], limits: GateLimits, *, promote: bool = True, deadline: float = math.inf
) -> list[Standing]:
    """Let the models play as many of the gate's games as fit before the `deadline` (of time.monotonic), and promote
    those that the gate lets pass. Without `promote` they are measured, and compared with nobody. Several are of
    different kinds of seats."""
    found: dict[str, Standing] = {}
    groups = _by_side(models)
    for place, group in enumerate(groups):
        tries, now = max(tries_before(registry, model) for model in group), time.monotonic()
        until = now + (deadline - now) / (len(groups) - place)  # each side has its share of the time
        try:
            if promote:
                alone, said = tried(registry, group, limits, tries=tries, deadline=until)
            else:
                alone, measured = play_shown_games(_player(registry, group), limits, deadline=until)
                said = [with_fields(measured, tries=tries)] * len(group)
        except Missing as error:
            text = f"not promoted: it cannot be measured here ({error.wrong})" if promote else NOT_ASKED
            found |= {model.id: Standing(None, False, text) for model in group}
            continue
        for model, evidence in zip(group, said, strict=True):
            better = promote and passed(evidence)
            if better:
                registry.promote(model.card.game, model.id, evidence)
            else:
                registry.save_evidence(model.id, evidence)
            told = f"{'promoted' if better else 'not promoted'}: {sentence(evidence)}" if promote else NOT_ASKED
            found[model.id] = Standing(alone, better, told)
    return [found[model.id] for model in models]


def tried(
    registry: Registry,
    models: Sequence[Model],
    limits: GateLimits,
    *,
    tries: int,
    seed: int | None = None,
    deadline: float = math.inf,
) -> tuple[Evaluation, list[Evidence]]:
    """The gate's games of the models of one side, and the evidence for or against each of them."""
    card = models[0].card
    if not card.kind:
        incumbent = incumbent_of(registry, card)
        alone, evidence = play_gate_games(models[0], incumbent, limits, tries=tries, seed=seed, deadline=deadline)
        return alone, [evidence]
    spec = spec_of(card.game)
    champions = champions_of(registry, spec, card.version)
    ours = Lineup.of(spec, models, champions)
    champions = replace(champions, own=ours.own)
    alone, evidence = play_gate_games(ours, champions, limits, tries=tries, seed=seed, deadline=deadline)
    before = [incumbent_of(registry, model.card) for model in models]
    return alone, [with_fields(evidence, incumbent=None if one is None else one.id) for one in before]


def _player(registry: Registry, models: Sequence[Model]) -> Model | Lineup:
    """The models of one side, with the champions in all other seats."""
    card = models[0].card
    if not card.kind:
        return models[0]
    spec = spec_of(card.game)
    return Lineup.of(spec, models, champions_of(registry, spec, card.version))


def incumbent_of(registry: Registry, card: Card) -> Model | None:
    """The champion that a model of this card would replace; None where there is none that fits its game's spec."""
    seat = card.kind[0] if card.kind else None
    champion = champion_model(registry, card.game, card.version, seat)
    return champion if champion is not None and champion.card.spec == card.spec else None


def _by_side(models: Sequence[Model]) -> list[list[Model]]:
    """The models that are judged together."""
    if not models[0].card.kind:
        return [[model] for model in models]
    found = [
        [model for model in models if model.card.kind and model.card.kind[0] in side]
        for side in sides(spec_of(models[0].card.game))
    ]
    return [group for group in found if group]
