"""Models in an S3 bucket (AWS, MinIO, versitygw, …): s3://bucket/prefix?endpoint=…&region=…&public=0

    format.json                                             this layout's number
    models/<id>/weights.safetensors, model.onnx             put first,
    models/<id>/card.json                                   put last: without it there is no model
    evidence/<id>.json                                      what the newest evaluation said
    champions/…                                             see s3_reigns.py
    trust                                                   the signing key's public name; see s3_key.py

Nothing is locked: whatever must not be overwritten is put on condition that nothing is there.
"""

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import msgspec

from sparring.errors import ConfigError, Missing, ModelDamaged
from sparring.registry.cards import (
    CARD,
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
from sparring.registry.champions.promotion import ChampionPromotion
from sparring.registry.champions.rules import ChampionRules
from sparring.registry.protocol import Evidence, Listed
from sparring.registry.s3.bucket import ALONE_BYTES, Address, Bucket
from sparring.registry.s3.champion_log import BucketChampionLog
from sparring.registry.s3.key import BucketKey
from sparring.wire.champion import canonical
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Card, Model, check

MODELS = "models/"
FORMAT, FORMAT_TEXT = "format.json", b'{"format":1}'
LINK_S = 900  # a download that begins within a quarter of an hour
READERS = 8
REMEMBERED_BYTES = 64 << 20

log = logging.getLogger(__name__)


class S3Registry(ChampionPromotion):
    """See `registry/protocol.py`. `clock` gives Unix seconds. Safe to call from several threads."""

    def __init__(
        self,
        url: str,
        *,
        champion_days: float = 7.0,
        rollout_share: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        address = Address.read(url)
        self._bucket, self._clock = Bucket(address), clock
        self._signer = BucketKey(self._bucket, Path(address.key) if address.key else None)
        reigns = BucketChampionLog(self._bucket, self._signer.private, lambda: self._signer.trust)
        self._succession = ChampionRules(
            reigns, self._signer, champion_days=champion_days, rollout_share=rollout_share, clock=clock
        )
        self._cards: dict[ModelId, Card] = {}  # verified; an id never means another card
        self._evidence: dict[str, tuple[str, Evidence | None]] = {}  # by key, with the ETag that it was read under
        self._files = _Remembered(REMEMBERED_BYTES)
        self._may_write = False

    def __enter__(self) -> "S3Registry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bucket.close()

    def publish(self, model: Model) -> ModelId:
        """Keep the model under its id; atomic, and harmless when repeated.

        The card is the commit: readers ask for it first, so that a publisher killed before it leaves nothing to see.
        """
        text = check_whole(model)
        self._prepare()
        if self._bucket.get(_key(model.id, CARD), MAX_CARD_BYTES) is not None:
            self._mend(model, text)
            return model.id
        if any(len(content) > ALONE_BYTES for content in model.files.values()):
            self._bucket.abandon_uploads(MODELS, self._clock())
        for name, content in model.files.items():
            if not self._bucket.put_new(_key(model.id, name), content):
                self._replace_unless_equal(model.id, name, content)
        if not self._bucket.put_new(_key(model.id, CARD), text):
            self._mend(model, text)
        return model.id

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
        known = self._files.get((model, name))
        if known is None:
            known = check(model, card, {name: self._read(model, name)}).files[name]
            self._files.keep((model, name), known)
        return known

    def link(self, model: ModelId, name: str) -> str | None:
        """An address to download that file from, signed for LINK_S seconds; not signed where models are public."""
        card = self._cards.get(model) or self._card(model)
        if name != CARD:
            check_has(card, model, name)
        return self._bucket.link(_key(model, name), LINK_S)

    def ids(self) -> list[ModelId]:
        """Every model's id, of all games, whole or damaged."""
        ends = f"/{CARD}"
        keys = (entry.key for entry in self._bucket.list(MODELS))
        return sorted(ModelId(key[len(MODELS) : -len(ends)]) for key in keys if key.endswith(ends))

    def models(self, game: GameId) -> list[Listed]:
        """Every model of the game, oldest first. One whose card is damaged is left out, and logged."""
        champions = self._succession.reigning(game)
        said = self._evidences()
        found = []
        for model, card in self._known_cards(self.ids()):
            if card.game == game:
                listed = Listed(card, said.get(_evidence_key(model)), model in champions)
                found.append((card.created_at_ms, model, listed))
        return [listed for *_, listed in sorted(found, key=lambda row: row[:2])]

    def judge(self, model: ModelId, evidence: Evidence) -> None:
        """Keep what an evaluation said of the model, promoted or not; lists show the newest."""
        self._card(model)  # Missing where it is not there
        check_evidence(model, evidence)
        self._prepare()
        self._bucket.put(_evidence_key(model), canonical(evidence))

    def share(self, yes: bool) -> str:
        """Let everybody download models, or no longer; the sentence that says so."""
        address = self._bucket.address
        if yes and not address.public:
            raise ConfigError("public=0, or it is not set", where="registry.url", do="Add public=1 to share models")
        self._bucket.share(MODELS, yes)
        whose = "everybody" if yes else "nobody without a signed address"
        return f"{whose} may download from {address}/{MODELS}"

    def _prepare(self) -> None:
        """Before the first write: that this is a layout which we know, and a server which keeps its conditions."""
        if self._may_write:
            return
        there = self._bucket.get(FORMAT, MAX_CARD_BYTES)
        if there is not None and there != FORMAT_TEXT:
            raise ConfigError(
                f"its format is {there[:40]!r}", where=str(self._bucket.address), do="Upgrade Sparring, or use a prefix"
            )
        if there is None:
            self._bucket.put_new(FORMAT, FORMAT_TEXT)
        if self._bucket.put_new(FORMAT, FORMAT_TEXT):
            raise ConfigError(
                "this server ignores `If-None-Match: *`, so two publishers could overwrite each other",
                where=str(self._bucket.address),
                do="Use one that keeps it: AWS S3, MinIO, versitygw",
            )
        self._may_write = True

    def _mend(self, model: Model, text: bytes) -> None:
        """Leave a whole model as it is; write again what of it is damaged, the card last."""
        for name, content in model.files.items():
            self._replace_unless_equal(model.id, name, content)
        self._replace_unless_equal(model.id, CARD, text)

    def _replace_unless_equal(self, model: ModelId, name: str, content: bytes) -> None:
        # What may be here is fixed by the model's id: whatever else is found is damage, whoever wrote it.
        key = _key(model, name)
        there = self._bucket.get(key, MAX_FILE_BYTES)
        if there != content:
            if there is not None:
                log.warning("published again over a damaged %s of %s", name, place(model))
            self._bucket.put(key, content)

    def _card(self, model: ModelId) -> Card:
        text = self._read(model, CARD)
        if (found := hashlib.sha256(text).hexdigest()) != model:
            raise ModelDamaged(f"its card hashes to {found[:12]}", where=place(model), do="Publish or pull it again")
        if model not in self._cards:
            self._cards[model] = read_card(text, model)
        return self._cards[model]

    def _known_cards(self, ids: Iterable[ModelId]) -> list[tuple[ModelId, Card]]:
        def read(model: ModelId) -> Card | None:
            try:
                return self._cards.get(model) or self._card(model)
            except (Missing, ModelDamaged) as error:
                log.warning("left out of the list: %s", error)
                return None

        ids = list(ids)
        with ThreadPoolExecutor(READERS) as pool:
            return [(model, card) for model, card in zip(ids, pool.map(read, ids), strict=True) if card is not None]

    def _evidences(self) -> dict[str, Evidence | None]:
        """By key; read again only where the ETag is another."""
        entries = list(self._bucket.list("evidence/"))
        changed = [entry for entry in entries if self._evidence.get(entry.key, ("",))[0] != entry.etag]
        with ThreadPoolExecutor(READERS) as pool:
            for entry, read in zip(changed, pool.map(lambda e: self._read_evidence(e.key), changed), strict=True):
                self._evidence[entry.key] = entry.etag, read
        return {entry.key: self._evidence[entry.key][1] for entry in entries}

    def _read_evidence(self, key: str) -> Evidence | None:
        try:
            text = self._bucket.get(key, MAX_CARD_BYTES)
            return None if text is None else msgspec.json.decode(text, type=Evidence)
        except (msgspec.DecodeError, UnicodeDecodeError, ModelDamaged) as error:
            log.warning("%s does not read: %s", key, error)
            return None

    def _read(self, model: ModelId, name: str) -> bytes:
        check_id(model)
        found = self._bucket.get(_key(model, name), MAX_CARD_BYTES if name == CARD else MAX_FILE_BYTES)
        if found is not None:
            return found
        raise no_such(model) if name == CARD else gone(model, name)


class _Remembered:
    """The verified files that were asked for last: a new champion is downloaded by many clients at once."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: OrderedDict[tuple[ModelId, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[ModelId, str]) -> bytes | None:
        return self._kept.get(key)

    def keep(self, key: tuple[ModelId, str], content: bytes) -> None:
        with self._lock:
            if key in self._kept or len(content) > self._most_bytes:
                return
            self._kept[key] = content
            self._bytes += len(content)
            while self._bytes > self._most_bytes:
                self._bytes -= len(self._kept.popitem(last=False)[1])


def _key(model: ModelId, name: str) -> str:
    return f"{MODELS}{model}/{name}"


def _evidence_key(model: ModelId) -> str:
    return f"evidence/{model}.json"
