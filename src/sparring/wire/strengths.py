"""The strengths that a game sells: a ladder of ten steps, evenly spaced in rating, signed as a champion is.

A step is a model of whose moves a share is its own, and the others are random. `strength` from 0 to 1 chooses a step.
The models themselves are fetched and verified by their ids.
"""

from typing import Protocol

import msgspec

from sparring.errors import ModelDamaged
from sparring.wire.champion import Signed, signed_payload
from sparring.wire.ids import GameId, ModelId

STEPS = 10


class StrengthStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step, with its Elo above the weakest and the bounds of its 95 % interval."""

    elo: float
    low: float
    high: float
    model: ModelId
    share: float = 1.0  # of moves that are the model's own; the others are random

    @property
    def does(self) -> str:
        """What it does, in words."""
        if self.share in (0.0, 1.0):
            return "its own moves" if self.share else "random moves"
        return f"{self.share:.0%} of its own moves, else random ones"


class Strengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is signed. Steps rise from the weakest to the strongest."""

    format: int = 1
    game: GameId
    version: str
    spec: str
    issued_at_ms: int
    games: int  # that were played to rate the steps
    steps: tuple[StrengthStep, ...]

    def step(self, strength: float) -> StrengthStep:
        """The step for a strength from 0 to 1."""
        return self.steps[round(strength * (len(self.steps) - 1))]


_read = msgspec.json.Decoder(Strengths).decode


class _Game(Protocol):
    """What a ladder is made for; a GameSpec is one."""

    @property
    def id(self) -> GameId: ...
    @property
    def version(self) -> str: ...
    @property
    def hash(self) -> str: ...


def verify_strengths(signed: Signed, trust: str, game: _Game) -> Strengths:
    """The ladder, if `trust` signed it for this very game; ModelDamaged otherwise."""
    try:
        found = _read(signed_payload(signed, trust))
    except msgspec.DecodeError as error:
        raise _bad(f"they do not read: {error}") from None
    if (
        (found.game, found.version, found.spec) != (game.id, game.version, game.hash)
        or not found.steps
        or found.format != 1
    ):
        raise _bad(f"they are of {found.game} {found.version} with spec {found.spec[:12]}, or of another format")
    return found


def _bad(wrong: str) -> ModelDamaged:
    return ModelDamaged(wrong, where="strengths", do="Make them again: `spar models strengths GAME --make`")
