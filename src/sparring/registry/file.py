"""Models in a folder: one folder for each, named by its id, and the signed champions beside them.

    <id>/card.json, weights.safetensors, model.onnx     never changed once there
    <id>/evidence.json                                  what the newest evaluation said
    champions/…                                         see reigns.py
    signing.key                                         0600

Nothing is kept open: any number of processes may read and publish at once.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from sparring.durable import kept, publish_folder, read_inside, replace_file, sweep
from sparring.errors import Missing, ModelDamaged, SparringError
from sparring.registry.cards import (
    CARD,
    EVIDENCE,
    ID,
    MAX_CARD_BYTES,
    MAX_FILE_BYTES,
    check_evidence,
    check_has,
    check_id,
    check_whole,
    gone,
    no_such,
    place,
    read_card,
)
from sparring.registry.champions.log import ChampionLog
from sparring.registry.champions.promotion import ChampionPromotion
from sparring.registry.champions.rules import DAY_S, ChampionRules
from sparring.registry.protocol import Evidence, Listed
from sparring.registry.signing_key import FolderKey
from sparring.wire.champion import canonical
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Card, Model, check

_Mark = tuple[int, int, int]  # a file's inode, time and size: another mark is another content

log = logging.getLogger(__name__)


class FileRegistry(ChampionPromotion):
    """See `registry/protocol.py`. `clock` gives Unix seconds."""

    def __init__(
        self,
        root: Path,
        *,
        champion_days: float = 7.0,
        rollout_share: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        with kept(root):
            root.mkdir(parents=True, exist_ok=True)
            sweep(root, DAY_S, clock())
        reigns = ChampionLog(root / "champions")
        self._signer = FolderKey(root, reigns.any)
        self._succession = ChampionRules(
            reigns, self._signer, champion_days=champion_days, rollout_share=rollout_share, clock=clock
        )
        self._cards: dict[ModelId, Card] = {}  # verified; an id never means another card
        self._evidence: dict[ModelId, tuple[_Mark, Evidence | None]] = {}

    def __enter__(self) -> "FileRegistry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def publish(self, model: Model) -> ModelId:
        """Keep the model under its id; atomic, durable on return, and harmless when repeated."""
        text = check_whole(model)
        folder = self.root / model.id
        with kept(folder):
            if not publish_folder(folder, {CARD: text, **model.files}):
                self._mend(model, text)
        return model.id

    def fetch(self, model: ModelId) -> Model:
        """Those exact bytes, verified; Missing or ModelDamaged otherwise. Never another instead."""
        card = self._card(model)
        return check(model, card, {name: self._read(model, name) for name in card.files})

    def file(self, model: ModelId, name: str) -> bytes:
        """One file of a model, "card.json" among them, verified."""
        if name == CARD:
            return self._card_text(model)
        card = self._card(model)
        check_has(card, model, name)
        return check(model, card, {name: self._read(model, name)}).files[name]

    def ids(self) -> list[ModelId]:
        """Every model's id, of all games, whole or damaged."""
        return sorted(ModelId(entry.name) for entry in os.scandir(self.root) if ID.match(entry.name))

    def models(self, game: GameId) -> list[Listed]:
        """Every model of the game, oldest first. One whose card is damaged is left out, and logged."""
        champions = self._succession.reigning(game)
        found = []
        for model in self.ids():
            try:
                card = self._cards.get(model) or self._card(model)
            except (Missing, ModelDamaged) as error:
                log.warning("left out of the list: %s", error)
                continue
            if card.game == game:
                found.append((card.created_at_ms, model, Listed(card, self.evidence(model), model in champions)))
        # By the id at hand: `card.id` would hash every card again.
        return [listed for *_, listed in sorted(found, key=lambda row: row[:2])]

    def judge(self, model: ModelId, evidence: Evidence) -> None:
        """Keep what an evaluation said of the model, promoted or not; lists show the newest."""
        self._card_text(model)  # Missing where it is not there
        check_evidence(model, evidence)
        path = self.root / model / EVIDENCE
        with kept(path):
            replace_file(path, canonical(evidence))

    def evidence(self, model: ModelId) -> Evidence | None:
        """What the newest evaluation said; None where there was none."""
        path = self.root / model / EVIDENCE
        try:
            about = path.lstat()
        except FileNotFoundError:
            return None
        mark = (about.st_ino, about.st_mtime_ns, about.st_size)
        known = self._evidence.get(model)
        if known is None or known[0] != mark:
            known = self._evidence[model] = mark, self._read_evidence(model)
        return known[1]

    def link(self, model: ModelId, name: str) -> str | None:
        """None: a folder is read by this process alone."""
        return None

    def _card(self, model: ModelId) -> Card:
        text = self._card_text(model)
        if model not in self._cards:
            self._cards[model] = read_card(text, model)
        return self._cards[model]

    def _card_text(self, model: ModelId) -> bytes:
        text = self._read(model, CARD)
        if (found := hashlib.sha256(text).hexdigest()) != model:
            raise ModelDamaged(f"its card hashes to {found[:12]}", where=place(model), do="Publish or pull it again")
        return text

    def _read(self, model: ModelId, name: str) -> bytes:
        check_id(model)
        try:
            return read_inside(self.root / model, name, MAX_CARD_BYTES if name == CARD else MAX_FILE_BYTES)
        except FileNotFoundError:
            if (self.root / model).is_dir():
                raise gone(model, name) from None
            raise no_such(model) from None

    def _read_evidence(self, model: ModelId) -> Evidence | None:
        try:
            return msgspec.json.decode(self._read(model, EVIDENCE), type=Evidence)
        except (msgspec.DecodeError, UnicodeDecodeError, SparringError) as error:
            log.warning("the evidence of model %s does not read: %s", model[:12], error)
            return None

    def _mend(self, model: Model, text: bytes) -> None:
        """Leave a whole model as it is; put a damaged one aside, and the whole one in its place."""
        try:
            self.fetch(model.id)
        except ModelDamaged as error:
            log.warning("published again over a damaged one: %s", error)
            aside = self.root / f".damaged-{model.id}-{time.time_ns()}"
            (self.root / model.id).rename(aside)
            publish_folder(self.root / model.id, {CARD: text, **model.files})
