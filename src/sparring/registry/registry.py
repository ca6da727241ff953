"""The registry: models by content, published whole and fetched exactly. The same on every backend's objects."""

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import msgspec

from sparring.errors import Missing, ModelDamaged
from sparring.registry.cards import (
    CARD,
    MAX_CARD_BYTES,
    MAX_FILE_BYTES,
    check_evidence,
    check_has,
    check_id,
    gone,
    no_such,
    place,
    read_card,
)
from sparring.registry.champions.log import READERS, ChampionLog
from sparring.registry.champions.rules import ChampionRules
from sparring.registry.protocol import Evidence, ListedModel, Objects
from sparring.registry.signing_key import SigningKey
from sparring.wire.champion import canonical
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Card, Model, check

EVIDENCE_FOLDER = "evidence/"

log = logging.getLogger(__name__)


class Registry(ChampionRules):
    """A context manager. Readers see a model whole or not at all. A backend adds `publish`, `ids` and `link`."""

    models_prefix = ""

    def __init__(
        self,
        objects: Objects,
        key: SigningKey,
        *,
        champion_days: float,
        rollout_share: float,
        fresh_s: float,
        clock: Callable[[], float],
    ) -> None:
        champion_log = ChampionLog(objects, key, fresh_s)
        super().__init__(champion_log, key, champion_days=champion_days, rollout_share=rollout_share, clock=clock)
        self._objects = objects
        self._cards: dict[ModelId, Card] = {}  # verified; an id never means another card
        self._evidence: dict[str, tuple[str, Evidence | None]] = {}  # by key, with the etag of what was read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._objects.close()

    @abstractmethod
    def publish(self, model: Model) -> ModelId:
        """Store the model under its id; atomic, durable on return, and harmless when repeated."""

    @abstractmethod
    def link(self, model: ModelId, name: str) -> str | None:
        """An address from which anyone who holds it can download that file for some minutes; None: there is none."""

    @abstractmethod
    def ids(self) -> list[ModelId]:
        """Every model's id, of all games, whole or damaged."""

    def fetch(self, model: ModelId) -> Model:
        """Those exact bytes, verified; Missing or ModelDamaged otherwise. Never another instead."""
        card = self._card(model)
        return check(model, card, {name: self._read(model, name) for name in card.files})

    def file(self, model: ModelId, name: str) -> bytes:
        """One file of a model, "card.json" among them, verified."""
        if name == CARD:
            return canonical(self._card(model))
        card = self._cards.get(model) or self._card(model)
        check_has(card, model, name)
        return check(model, card, {name: self._read(model, name)}).files[name]

    def models(self, game: GameId) -> list[ListedModel]:
        """Every model of the game, oldest first. One whose card is damaged is left out, and logged."""
        champions, evidence = self._log.champions(game), self._newest_evidence()
        found = [
            (card.created_at_ms, model, ListedModel(card, evidence.get(_evidence_key(model)), model in champions))
            for model, card in self._readable_cards(self.ids())
            if card.game == game
        ]
        # By the id at hand: `card.id` would hash every card again.
        return [listed for *_, listed in sorted(found, key=lambda row: row[:2])]

    def save_evidence(self, model: ModelId, evidence: Evidence) -> None:
        """Store the result of an evaluation, whether or not the model is promoted; lists show the newest."""
        self._card(model)  # Missing where it is not there
        check_evidence(model, evidence)
        self._objects.put(_evidence_key(model), canonical(evidence))

    def _key_of(self, model: ModelId, name: str) -> str:
        return f"{self.models_prefix}{model}/{name}"

    def _card(self, model: ModelId) -> Card:
        """The card, read again each time, so that damage is noticed."""
        text = self._read(model, CARD)
        if (found := hashlib.sha256(text).hexdigest()) != model:
            raise ModelDamaged(f"its card hashes to {found[:12]}", where=place(model), do="Publish or pull it again")
        if model not in self._cards:
            self._cards[model] = read_card(text, model)
        return self._cards[model]

    def _read(self, model: ModelId, name: str) -> bytes:
        check_id(model)
        found = self._objects.get(self._key_of(model, name), MAX_CARD_BYTES if name == CARD else MAX_FILE_BYTES)
        if found is None:
            raise no_such(model) if name == CARD else gone(model, name)
        return found

    def _readable_cards(self, ids: Iterable[ModelId]) -> list[tuple[ModelId, Card]]:
        def read(model: ModelId) -> Card | None:
            try:
                return self._card(model)
            except (Missing, ModelDamaged) as error:
                log.warning("left out of the list: %s", error)
                return None

        ids = list(ids)
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(read, [model for model in ids if model not in self._cards]))
        return [(model, self._cards[model]) for model in ids if model in self._cards]

    def _newest_evidence(self) -> dict[str, Evidence | None]:
        """By key; read again only where the etag changed."""
        entries = list(self._objects.list(EVIDENCE_FOLDER))
        changed = [entry for entry in entries if self._evidence.get(entry.key, ("",))[0] != entry.etag]
        with ThreadPoolExecutor(READERS) as pool:
            for entry, read in zip(changed, pool.map(lambda e: self._read_evidence(e.key), changed), strict=True):
                self._evidence[entry.key] = entry.etag, read
        return {entry.key: self._evidence[entry.key][1] for entry in entries}

    def _read_evidence(self, key: str) -> Evidence | None:
        try:
            text = self._objects.get(key, MAX_CARD_BYTES)
            return None if text is None else msgspec.json.decode(text, type=Evidence)
        except (msgspec.DecodeError, UnicodeDecodeError, ModelDamaged) as error:
            log.warning("%s does not read: %s", key, error)
            return None


def _evidence_key(model: ModelId) -> str:
    return f"{EVIDENCE_FOLDER}{model}.json"
