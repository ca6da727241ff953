"""The strengths that a game sells: a ladder of ten steps, evenly spaced in rating, signed as a champion is.

A step is a model of whose moves a share is its own, and the others are random. `strength` from 0 to 1 chooses a step.
`style` chooses another ladder, of as many steps that are rated alike: models that play in that way. The models
themselves are fetched and verified by their ids.
"""

from typing import Protocol

import msgspec

from sparring.errors import ModelDamaged, Refused
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


class Style(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to play, and its ladder. Steps above its strongest member are that member."""

    name: str
    means: str  # what its members do otherwise than all others, in figures
    members: tuple[ModelId, ...]
    steps: tuple[StrengthStep, ...]


class Strengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is signed. Steps rise from the weakest to the strongest."""

    format: int = 1
    game: GameId
    version: str
    spec: str
    issued_at_ms: int
    games: int  # that were played to rate the steps
    steps: tuple[StrengthStep, ...]
    styles: tuple[Style, ...] = ()  # none, or two at least; a ladder that was signed before there were any has none

    def step(self, strength: float, style: str | None = None) -> StrengthStep:
        """The step for a strength from 0 to 1, of a style where one is named; Refused where there is none of it."""
        steps = self.steps if style is None else self.style(style).steps
        return steps[int(strength * (len(steps) - 1) + 0.5)]  # halves go up, as in the browser

    def style(self, name: str) -> Style:
        """The style of that name, or Refused."""
        found = next((one for one in self.styles if one.name == name), None)
        if found is None:
            raise no_style(self.game, name, [one.name for one in self.styles])
        return found

    @property
    def models(self) -> set[ModelId]:
        """Of all steps."""
        return {step.model for steps in (self.steps, *(one.steps for one in self.styles)) for step in steps}


def no_style(game: GameId, name: str, names: list[str]) -> Refused:
    """There is no such style among `names`."""
    wrong = f"there is no style {name!r}; " + (f"the styles are {', '.join(names)}" if names else "no styles are sold")
    do = "Choose one of them, or leave it out" if names else "Leave it out; `spar models strengths GAME` shows what is"
    return Refused(wrong, where=f"styles of {game}", do=do, field="style", value=name, limit=names)


_read = msgspec.json.Decoder(Strengths).decode


class _Game(Protocol):
    """What a ladder is made for; a GameSpec is one."""

    @property
    def id(self) -> GameId: ...
    @property
    def version(self) -> str: ...
    @property
    def hash(self) -> str: ...


def read_strengths(signed: Signed, trust: str) -> Strengths:
    """The ladder, of whichever game, if `trust` signed it; ModelDamaged otherwise."""
    try:
        return _read(signed_payload(signed, trust))
    except msgspec.DecodeError as error:
        raise _bad(f"they do not read: {error}") from None


def verify_strengths(signed: Signed, trust: str, game: _Game) -> Strengths:
    """The ladder, if `trust` signed it for this very game; ModelDamaged otherwise."""
    found = read_strengths(signed, trust)
    if (
        (found.game, found.version, found.spec) != (game.id, game.version, game.hash)
        or not all([found.steps, *(one.steps for one in found.styles)])
        or found.format != 1
    ):
        raise _bad(f"they are of {found.game} {found.version} with spec {found.spec[:12]}, or of another format")
    return found


def _bad(wrong: str) -> ModelDamaged:
    return ModelDamaged(wrong, where="strengths", do="Make them again: `spar models strengths GAME --make`")
