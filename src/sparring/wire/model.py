"""A model as it travels: a card that says everything, and files named by their hashes.

A model's id is the SHA-256 of its card's canonical JSON, and the card holds the hash of every
file, so those exact bytes are what an id means. Never a pickle.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sparring.errors import ModelDamaged
from sparring.wire.champion import canonical
from sparring.wire.ids import GameId, ModelId
from sparring.wire.network import NetworkSpec

WEIGHTS, ONNX = "weights.safetensors", "model.onnx"


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from, enough to make it again and to know whose play it saw."""

    algorithm: str
    config: dict[str, Any]  # the algorithm's effective settings
    parents: tuple[ModelId, ...] = ()
    steps: dict[str, int]  # by source: selfplay, play, collect …
    store_until_ms: int | None = None  # rows received up to then may have been read; None: the store was not read
    commit: str = ""
    seed: int = 0
    run: str = ""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a model but its numbers."""

    format: int = 1
    game: GameId
    version: str
    spec: str
    network: NetworkSpec
    policy: str  # "categorical": logits of probabilities; "greedy": logits are values; "gaussian": a mean
    acts: Literal["sample"] | UnsetType = UNSET  # it samples its probabilities; unset: it takes the best action
    seats: tuple[int, ...] | UnsetType = UNSET  # those of its kind, where a game has several; unset: it plays any
    lineage: Lineage
    created_at_ms: int
    files: dict[str, str]  # name → SHA-256, hex

    @property
    def id(self) -> ModelId:
        return ModelId(hashlib.sha256(canonical(self)).hexdigest())

    @property
    def kind(self) -> tuple[int, ...]:
        """The seats of the one kind that it plays; (): the game has one kind, and it plays any."""
        return () if self.seats is UNSET else self.seats

    @property
    def samples(self) -> bool:
        """Whether the model, as it is judged and played, draws its actions."""
        return self.acts == "sample"


@dataclass(frozen=True, slots=True)
class Model:
    """A card and the files that it names."""

    card: Card
    files: Mapping[str, bytes]

    @property
    def id(self) -> ModelId:
        return self.card.id


def check(model: ModelId, card: Card, files: Mapping[str, bytes]) -> Model:
    """The model, if card and files are exactly what the id names; ModelDamaged otherwise."""
    where = f"model {model[:12]}"
    if card.id != model:
        raise ModelDamaged(f"its card hashes to {card.id[:12]}", where=where, do="Fetch it again")
    for name, content in files.items():
        if (found := hashlib.sha256(content).hexdigest()) != card.files.get(name):
            wrong = f"{name} hashes to {found[:12]}, not what its card says"
            raise ModelDamaged(wrong, where=where, do="Fetch it again")
    return Model(card, files)
