"""Models in an S3 bucket (AWS, MinIO, versitygw, …): s3://bucket/prefix?endpoint=…&region=…&public=0

    format.json                                             this layout's number
    models/<id>/weights.safetensors, model.onnx             put first,
    models/<id>/card.json                                   put last: without it there is no model
    evidence/<id>.json                                      the model's newest evaluation
    champions/…                                             see champions.py
    trust                                                   the signing key's public name; see champions.py

Nothing is locked: what must not be overwritten is put on condition that nothing is there.
"""

import logging
import threading
from pathlib import Path
from typing import Any

from sparring.errors import ConfigError
from sparring.registry.champions import SigningKey
from sparring.registry.protocol import Evidence
from sparring.registry.registry import CARD, MAX_CARD_BYTES, MAX_FILE_BYTES, Registry, check_whole, place
from sparring.registry.s3.bucket import ALONE_BYTES, Address, Bucket
from sparring.wire.ids import ModelId
from sparring.wire.model import Model

MODELS = "models/"
FORMAT, FORMAT_TEXT = "format.json", b'{"format":1}'
LINK_S = 900  # a download that begins within a quarter of an hour
CACHE_BYTES = 64 << 20

log = logging.getLogger(__name__)


class S3Registry(Registry):
    """Safe to call from several threads."""

    models_prefix = MODELS

    def __init__(self, url: str, **settings: Any) -> None:
        """`settings` are those of `Registry`."""
        address = Address.read(url)
        self._bucket = bucket = Bucket(address)
        key = SigningKey(bucket, Path(address.key) if address.key else None)
        super().__init__(bucket, key, address.fresh_s, **settings)
        self._files: dict[tuple[ModelId, str], bytes] = {}  # verified: many clients download a new champion at once
        self._lock = threading.Lock()
        self._may_write = False

    def publish(self, model: Model) -> ModelId:
        """The card is the commit: readers ask for it first, so a publisher killed before it leaves nothing to see."""
        text = check_whole(model)
        self._prepare()
        if self._bucket.get(self._key_of(model.id, CARD), MAX_CARD_BYTES) is not None:
            self._repair(model, text)
            return model.id
        if any(len(content) > ALONE_BYTES for content in model.files.values()):
            self._bucket.abandon_uploads(MODELS, self._clock())
        for name, content in model.files.items():
            if not self._bucket.put_new(self._key_of(model.id, name), content):
                self._replace_unless_equal(model.id, name, content)
        if not self._bucket.put_new(self._key_of(model.id, CARD), text):
            self._repair(model, text)
        return model.id

    def file(self, model: ModelId, name: str) -> bytes:
        if name == CARD:
            return super().file(model, name)
        known = self._files.get((model, name))
        if known is None:
            known = super().file(model, name)
            with self._lock:
                if len(known) <= CACHE_BYTES:
                    self._files[model, name] = known
                while sum(map(len, self._files.values())) > CACHE_BYTES:
                    del self._files[next(iter(self._files))]  # the oldest
        return known

    def link(self, model: ModelId, name: str) -> str | None:
        """An address to download that file from, signed for LINK_S seconds; not signed where models are public."""
        self._card_with(model, name)
        return self._bucket.link(self._key_of(model, name), LINK_S)

    def ids(self) -> list[ModelId]:
        suffix = f"/{CARD}"
        keys = (found.key for found in self._bucket.list(MODELS))
        return sorted(ModelId(key[len(MODELS) : -len(suffix)]) for key in keys if key.endswith(suffix))

    def save_evidence(self, model: ModelId, evidence: Evidence) -> None:
        self._prepare()
        super().save_evidence(model, evidence)

    def share(self, yes: bool) -> str:
        """Let everybody download models, or no longer; the sentence that says so."""
        address = self._bucket.address
        if yes and not address.public:
            raise ConfigError("public=0, or it is not set", where="registry.url", do="Add public=1 to share models")
        self._bucket.share(MODELS, yes)
        whose = "everybody" if yes else "only who has a signed address"
        return f"{whose} may download from {address}/{MODELS}"

    def _prepare(self) -> None:
        """Before the first write: check that the layout is known, and that the server respects conditional puts."""
        if self._may_write:
            return
        found = self._bucket.get(FORMAT, MAX_CARD_BYTES)
        if found is not None and found != FORMAT_TEXT:
            raise ConfigError(
                f"its format is {found[:40]!r}", where=str(self._bucket), do="Upgrade Sparring, or use a prefix"
            )
        if found is None:
            self._bucket.put_new(FORMAT, FORMAT_TEXT)
        if self._bucket.put_new(FORMAT, FORMAT_TEXT):
            raise ConfigError(
                "this server ignores `If-None-Match: *`, so two publishers could overwrite each other",
                where=str(self._bucket),
                do="Use one that respects it: AWS S3, MinIO, versitygw",
            )
        self._may_write = True

    def _repair(self, model: Model, text: bytes) -> None:
        """Leave a whole model as it is; write the damaged files again, the card last."""
        for name, content in {**model.files, CARD: text}.items():
            self._replace_unless_equal(model.id, name, content)

    def _replace_unless_equal(self, model: ModelId, name: str, content: bytes) -> None:
        # The model's id fixes the content: anything else that is found is damage.
        key = self._key_of(model, name)
        found = self._bucket.get(key, MAX_FILE_BYTES)
        if found != content:
            if found is not None:
                log.warning("published again over a damaged %s of %s", name, place(model))
            self._bucket.put(key, content)
