"""A model stands for champion: it plays the gate's games, and is promoted where they show that it is better."""

import math
from dataclasses import dataclass

from sparring.acting.evaluate import Evaluation
from sparring.errors import Missing
from sparring.league.gate import GateLimits, passed, play_gate_games, sentence, tries_before
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.model import Card, Model


@dataclass(frozen=True, slots=True)
class Standing:
    """What the gate found of a model."""

    evaluation: Evaluation | None  # None: the game has no simulator here
    promoted: bool
    verdict: str  # a sentence


def stand_for_promotion(
    registry: Registry, model: Model, limits: GateLimits, *, promote: bool = True, deadline: float = math.inf
) -> Standing:
    """Let the model play as many of the gate's games as fit before the `deadline` (of time.monotonic), and promote it
    if the gate lets it pass, unless told not to."""
    tries = tries_before(registry, model)
    try:
        incumbent = incumbent_of(registry, model.card)
        alone, evidence = play_gate_games(model, incumbent, limits, tries=tries, deadline=deadline)
    except Missing as error:
        return Standing(None, False, f"not promoted: it cannot be measured here ({error.wrong})")
    reason = sentence(evidence)
    if promote and passed(evidence):
        registry.promote(model.card.game, model.id, evidence)
        return Standing(alone, True, f"promoted: {reason}")
    registry.save_evidence(model.id, evidence)
    verdict = f"not promoted, as asked: {reason}" if passed(evidence) else f"not promoted: {reason}"
    return Standing(alone, False, verdict)


def incumbent_of(registry: Registry, card: Card) -> Model | None:
    """The champion that a model of this card would replace; None where there is none that fits its game's spec."""
    signed = registry.champion(card.game, card.version)
    if signed is None:
        return None
    champion = verify(signed, signed.key)  # the registry is our own: its key is trusted
    return registry.fetch(champion.model) if champion.spec == card.spec else None
