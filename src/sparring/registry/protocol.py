"""What every registry offers: models published whole, fetched exactly, and one signed champion."""

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sparring.wire.champion import Signed
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Card, Model

if TYPE_CHECKING:
    from sparring.registry.champions.log import ChampionEntry


def _always(value: object) -> Any:
    """A default that is written all the same: msgspec leaves out only what is the default itself, not what a
    function makes. Records signed before `against` have these fields in the JSON over which their hash is taken."""
    return msgspec.field(default_factory=lambda: value)


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a model may become champion: what it scored beside the one it replaces, in the same games.

    A field added later is left out of the JSON at its default, so that old records keep their hash."""

    episodes: int
    mean: float
    sd: float
    incumbent: ModelId | None = _always(None)
    incumbent_mean: float | None = _always(None)
    incumbent_sd: float | None = _always(None)
    wins: int | None = _always(None)  # against the incumbent, in games with opponents
    draws: int | None = _always(None)
    losses: int | None = _always(None)
    by: str = _always("gate")  # "gate"; "operator" where a person promoted it by hand; "rollback"
    reason: str = _always("")  # the operator's, in their words
    against: str | None = None  # whom `mean` was earned against, "script:NAME" or "model:ID"; None: nobody, or unknown

    @property
    def rival(self) -> str:
        """`against` in few letters; "" where nobody else plays, or an old record does not say."""
        kind, _, name = (self.against or "").partition(":")
        return name[:12] if kind == "model" else name


@dataclass(frozen=True, slots=True)
class Listed:
    """A model in a list, with what its evaluation said and whether it reigns."""

    card: Card
    evidence: Evidence | None
    champion: bool


class Registry(Protocol):
    """A context manager. Readers see a model whole or not at all."""

    def __enter__(self) -> "Registry": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def trust(self) -> str:
        """The name of the key that signs champions here: what `connect(trust=…)` takes."""
        ...

    def publish(self, model: Model) -> ModelId:
        """Keep the model under its id; atomic, and harmless when repeated."""
        ...

    def fetch(self, model: ModelId) -> Model:
        """Those exact bytes, verified; Missing or ModelDamaged otherwise. Never another instead."""
        ...

    def models(self, game: GameId) -> list[Listed]:
        """Every model of the game, oldest first."""
        ...

    def champion(self, game: GameId, version: str, seat: int | None = None) -> Signed | None:
        """The signed manifest for that version and seat, signed anew near its expiry; None where none reigns."""
        ...

    def promote(
        self, game: GameId, model: ModelId, evidence: Evidence, seat: int | None = None, *, above: int = 0
    ) -> Signed:
        """Make the model champion of its version with the next counter. Going back is a promotion too.

        The first promotion of a game has the counter after `above`: that of a registry which this one replaces."""
        ...

    def judge(self, model: ModelId, evidence: Evidence) -> None:
        """Keep what an evaluation said of the model, promoted or not; lists show the newest."""
        ...

    def file(self, model: ModelId, name: str) -> bytes:
        """One file of a model, "card.json" among them, verified."""
        ...

    def ids(self) -> list[ModelId]:
        """Every model's id, of all games, whole or damaged."""
        ...

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have, or had, a champion."""
        ...

    def history(self, game: GameId, version: str, seat: int | None = None) -> "list[ChampionEntry]":
        """Every signing for exactly that version and seat, oldest first, with its evidence."""
        ...

    def link(self, model: ModelId, name: str) -> str | None:
        """An address from which anyone who holds it can download that file for some minutes; None: there is none."""
        ...
