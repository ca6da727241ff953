"""What a registry stores and lists, and the objects on which a backend stores it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sparring.wire.ids import ModelId
from sparring.wire.model import Card


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What `league/gate.py` found: the model's games, and those against or beside the champion that it would replace.
    Where there is no champion it is compared with random play."""

    episodes: int
    mean: float
    sd: float
    verdict: str = ""  # "better", "not worse", "not better", "worse", "undecided"; "": the gate was not asked
    tries: int = 0  # of its lineage, this one included
    seed: int = 0  # of the gate's games
    incumbent: ModelId | None = None
    incumbent_mean: float | None = None  # on the same seeds, in games without opponents
    incumbent_sd: float | None = None
    beside_incumbent: float | None = None  # the mean of the model in one seat of a team, the incumbent in the others
    wins: int | None = None  # against the incumbent, in games with opponents
    draws: int | None = None
    losses: int | None = None
    distinct: int | None = None  # of those games
    elo_low: float | None = None  # the model's rating above the incumbent's, with 95 % confidence
    elo_high: float | None = None
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

    def put(self, key: str, content: bytes) -> None:
        """Store `content` in place of what was there; durable on return."""

    def put_new(self, key: str, content: bytes) -> bool:
        """Store `content` where there is nothing yet, durable on return. False where there is, which stays."""

    def list(self, prefix: str, limit: int | None = None) -> Iterator[ListedObject]:
        """What begins with `prefix`, which ends in a slash, in the order of its bytes; at most `limit`."""

    def close(self) -> None:
        """Release connections."""
