"""What every registry offers: models published whole, fetched exactly, and one signed champion."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import msgspec

from sparring.wire.champion import Signed
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Card, Model

if TYPE_CHECKING:
    from sparring.registry.champions.log import ChampionEntry


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Why a model may become champion: its score and that of the champion it would replace, in the same games."""

    episodes: int
    mean: float
    sd: float
    incumbent: ModelId | None = None
    incumbent_mean: float | None = None
    incumbent_sd: float | None = None
    wins: int | None = None  # against the incumbent, in games with opponents
    draws: int | None = None
    losses: int | None = None
    by: str = "gate"  # "gate"; "operator" where a person promoted it by hand; "rollback"
    reason: str = ""  # the operator's, in their words
    against: str | None = None  # the opponent behind `mean`, "script:NAME" or "model:ID"; None: no opponent

    @property
    def opponent(self) -> str:
        """`against` in few letters; "" where there is no opponent."""
        kind, _, name = (self.against or "").partition(":")
        return name[:12] if kind == "model" else name


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model in a list, with its newest evaluation and whether it is a champion."""

    card: Card
    evidence: Evidence | None
    champion: bool


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object in a listing; another `etag` means other content."""

    key: str
    etag: str


class Objects(Protocol):
    """Where a backend stores bytes under keys such as "champions/cartpole/….json". Its str() is its address."""

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """The object, whole; None where there is none; ModelDamaged where it is larger."""
        ...

    def put(self, key: str, content: bytes) -> None:
        """Store `content` in place of what was there; durable on return."""
        ...

    def put_new(self, key: str, content: bytes) -> bool:
        """Store `content` where there is nothing yet, durable on return. False where there is, which stays."""
        ...

    def list(self, prefix: str, limit: int | None = None) -> Iterator[ListedObject]:
        """What begins with `prefix`, which ends in a slash, in the order of its bytes; at most `limit`."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class Registry(Protocol):
    """A context manager. Readers see a model whole or not at all."""

    def __enter__(self) -> "Registry": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def trust(self) -> str:
        """The public name of the key that signs champions here: what `connect(trust=…)` takes."""
        ...

    def publish(self, model: Model) -> ModelId:
        """Store the model under its id; atomic, durable on return, and harmless when repeated."""
        ...

    def fetch(self, model: ModelId) -> Model:
        """Those exact bytes, verified; Missing or ModelDamaged otherwise. Never another instead."""
        ...

    def models(self, game: GameId) -> list[ListedModel]:
        """Every model of the game, oldest first. One whose card is damaged is left out, and logged."""
        ...

    def champion(self, game: GameId, version: str, seat: int | None = None) -> Signed | None:
        """The signed manifest for that version and seat, re-signed near its expiry; None where there is none."""
        ...

    def promote(
        self, game: GameId, model: ModelId, evidence: Evidence, seat: int | None = None, *, above: int = 0
    ) -> Signed:
        """Make the model champion of its version with the next counter. A rollback is a promotion too.

        The first promotion of a game has the counter after `above`: that of a registry which this one replaces."""
        ...

    def save_evidence(self, model: ModelId, evidence: Evidence) -> None:
        """Store the result of an evaluation, whether or not the model is promoted; lists show the newest."""
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
        """Every entry of the champion log for exactly that version and seat, oldest first, with its evidence."""
        ...

    def link(self, model: ModelId, name: str) -> str | None:
        """An address from which anyone who holds it can download that file for some minutes; None: there is none."""
        ...
