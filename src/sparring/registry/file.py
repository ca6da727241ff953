"""Models in a folder: one folder for each, named by its id, and the signed champions beside them.

    <id>/card.json, weights.safetensors, model.onnx     never changed once there
    <id>/evidence.json                                  what the newest evaluation said
    champions/…                                         see reigns.py
    signing.key                                         0600

Nothing is kept open: any number of processes may read and publish at once.
"""

import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparring.errors import Missing, ModelDamaged, Refused, SparringError, StoreFailed
from sparring.registry.durable import kept, publish_folder, read_inside, replace_file, sweep
from sparring.registry.protocol import Evidence, Listed
from sparring.registry.reigns import Record, Reign, Reigns
from sparring.registry.signing import signing_key
from sparring.wire.champion import Champion, Signed, canonical, key_name, sign
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Card, Model, check

CARD, EVIDENCE = "card.json", "evidence.json"
MAX_CARD_BYTES = 4 << 20
MAX_FILE_BYTES = 2 << 30
_DAY_S = 86_400.0
_ID = re.compile(r"[0-9a-f]{64}\Z")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_Mark = tuple[int, int, int]  # a file's inode, time and size: another mark is another content

log = logging.getLogger(__name__)


class FileRegistry:
    """See `registry/protocol.py`. `clock` gives Unix seconds."""

    def __init__(
        self,
        root: Path,
        *,
        champion_days: float = 7.0,
        rollout_share: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root, self.rollout_share = root, rollout_share
        self._life_ms, self._clock = int(champion_days * _DAY_S * 1000), clock
        with kept(root):
            root.mkdir(parents=True, exist_ok=True)
            sweep(root, _DAY_S, clock())
        self._reigns = Reigns(root / "champions")
        self._key: Ed25519PrivateKey | None = None
        self._cards: dict[ModelId, Card] = {}  # verified; an id never means another card
        self._evidence: dict[ModelId, tuple[_Mark, Evidence | None]] = {}

    def __enter__(self) -> "FileRegistry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def trust(self) -> str:
        """The name of the key that signs here: what `connect(trust=…)` takes. Made on first need."""
        return key_name(self._signing().public_key())

    def publish(self, model: Model) -> ModelId:
        """Keep the model under its id; atomic, durable on return, and harmless when repeated."""
        text = _check_whole(model)
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
        if name not in card.files:
            raise Missing(f"it has no file {name[:80]!r}", where=_where(model), do=f"Ask for {', '.join(card.files)}")
        return check(model, card, {name: self._read(model, name)}).files[name]

    def ids(self) -> list[ModelId]:
        """Every model's id, of all games, whole or damaged."""
        return sorted(ModelId(entry.name) for entry in os.scandir(self.root) if _ID.match(entry.name))

    def models(self, game: GameId) -> list[Listed]:
        """Every model of the game, oldest first. One whose card is damaged is left out, and logged."""
        champions = self._reigns.reigning(game, self.trust) if self._reigns.any() else set()
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
        if not (math.isfinite(evidence.mean) and math.isfinite(evidence.sd)):
            raise Refused(
                f"its return is {evidence.mean} ± {evidence.sd}",
                where=_where(model),
                do="Evaluate it again; a model that diverged is not worth keeping",
                field="evidence",
            )
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

    def champion(self, game: GameId, version: str, seat: int | None = None) -> Signed | None:
        """The signed manifest for that version and seat, signed anew near its expiry; None where none reigns.

        A seat without a champion of its own is served by the one for all seats.
        """
        if not self._reigns.any():
            return None
        reign = None if seat is None else self._reigns.newest(game, version, seat, self.trust)
        reign = reign or self._reigns.newest(game, version, None, self.trust)
        if reign is None:
            return None
        if self._life_left(reign) < 0.5:
            reign = self._renewed(reign)
        return reign.record.signed

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have a champion."""
        return self._reigns.versions(game)

    def history(self, game: GameId, version: str, seat: int | None = None) -> list[Reign]:
        """Every signing for that version and seat, oldest first, with its evidence."""
        return self._reigns.history(game, version, seat, self.trust) if self._reigns.any() else []

    def promote(self, game: GameId, model: ModelId, evidence: Evidence, seat: int | None = None) -> Signed:
        """Make the model champion of its version with the next counter. Going back is a promotion too.

        While it is rolled out, clients outside `rollout_share` keep the champion before it; a rollback
        (`evidence.by` is "rollback") is for everyone at once.
        """
        card = self.fetch(model).card
        if card.game != game:
            raise Refused(f"it plays {card.game}", where=_where(model), do=f"Promote a model of {game}", field="game")
        self._signing()  # before anything is written
        self.judge(model, evidence)
        back = evidence.by == "rollback"
        with self._reigns.writing(game) as counter:
            now = self._present(game, card.version, seat)
            previous = None if now is None or back else now.champion.model
            if now is not None and now.champion.model == model:
                previous = now.champion.previous  # promoted again: the same roll-out, with today's share
            issued = self._now_ms()
            champion = Champion(
                game=game,
                version=card.version,
                seat=seat,
                model=model,
                spec=card.spec,
                counter=counter,
                issued_at_ms=issued,
                expires_at_ms=issued + self._life_ms,
                previous=previous,
                rollout_share=1.0 if back else self.rollout_share,
            )
            record = Record("rollback" if back else "promotion", sign(champion, self._signing()), evidence)
            self._reigns.append(champion, record)
        return record.signed

    def _present(self, game: GameId, version: str, seat: int | None) -> Reign | None:
        try:
            return self._reigns.newest(game, version, seat, self.trust)
        except ModelDamaged as error:  # a promotion is the way out of it
            log.warning("the record before this promotion is damaged: %s", error)
            return None

    def _renewed(self, old: Reign) -> Reign:
        said, trust = old.champion, self.trust
        try:
            with self._reigns.writing(said.game) as counter:
                newest = self._reigns.newest(said.game, said.version, said.seat, trust) or old
                if self._life_left(newest) >= 0.5:
                    return newest  # another process was first
                now = self._now_ms()
                champion = msgspec.structs.replace(
                    newest.champion, counter=counter, issued_at_ms=now, expires_at_ms=now + self._life_ms
                )
                record = Record("renewal", sign(champion, self._signing()), newest.record.evidence)
                self._reigns.append(champion, record)
                return Reign(champion, record)
        except StoreFailed as error:
            if self._life_left(old) <= 0:
                raise
            log.warning("the champion is not signed anew, it still holds: %s", error)
            return old

    def _life_left(self, reign: Reign) -> float:
        life_ms = max(1, reign.champion.expires_at_ms - reign.champion.issued_at_ms)
        return (reign.champion.expires_at_ms - self._now_ms()) / life_ms

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _signing(self) -> Ed25519PrivateKey:
        if self._key is None:
            self._key = signing_key(self.root, may_make=not self._reigns.any())
        return self._key

    def _card(self, model: ModelId) -> Card:
        text = self._card_text(model)
        if model not in self._cards:
            self._cards[model] = read_card(text, model)
        return self._cards[model]

    def _card_text(self, model: ModelId) -> bytes:
        text = self._read(model, CARD)
        if (found := hashlib.sha256(text).hexdigest()) != model:
            raise ModelDamaged(f"its card hashes to {found[:12]}", where=_where(model), do="Publish or pull it again")
        return text

    def _read(self, model: ModelId, name: str) -> bytes:
        if not _ID.match(model):
            raise Missing(f"{model[:80]!r} is not a model's id", where="registry", do="Give its 64 hex digits")
        try:
            return read_inside(self.root / model, name, MAX_CARD_BYTES if name == CARD else MAX_FILE_BYTES)
        except FileNotFoundError:
            if (self.root / model).is_dir():
                raise ModelDamaged(f"its {name} is gone", where=_where(model), do="Publish or pull it again") from None
            raise Missing(
                "there is no such model here", where=_where(model), do="`spar models list` shows those that are"
            ) from None

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


def read_card(text: bytes, model: ModelId) -> Card:
    """The card in `text`, whose hash is `model`; ModelDamaged where it says more or other than a card can."""
    try:
        card = msgspec.json.decode(text, type=Card)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelDamaged(f"its card does not read: {error}", where=_where(model), do="Pull it again") from None
    if card.format != 1 or card.id != model:
        raise ModelDamaged(
            f"its card is of format {card.format} or not canonical", where=_where(model), do="Upgrade Sparring"
        )
    if bad := [name for name in card.files if not _FILE.match(name) or name in (CARD, EVIDENCE)]:
        raise ModelDamaged(f"its card names a file {bad[0][:40]!r}", where=_where(model), do="Do not use it")
    return card


def _check_whole(model: Model) -> bytes:
    """The card's text, if the model is exactly what its card says; ModelDamaged otherwise."""
    text = canonical(model.card)
    read_card(text, model.id)
    check(model.id, model.card, model.files)
    if missing := sorted(set(model.card.files) - set(model.files)):
        raise ModelDamaged(f"its {missing[0]} is missing", where=_where(model.id), do="Give every file that it names")
    return text


def _where(model: ModelId) -> str:
    return f"model {model[:12]}"
