"""Checks of a model before a registry stores or returns it: ids, cards, names of files, evidence."""

import math
import re

import msgspec

from sparring.errors import Missing, ModelDamaged, Refused
from sparring.registry.protocol import Evidence
from sparring.wire.champion import canonical
from sparring.wire.ids import ModelId
from sparring.wire.model import Card, Model, check

CARD, EVIDENCE = "card.json", "evidence.json"
MAX_CARD_BYTES = 4 << 20
MAX_FILE_BYTES = 2 << 30
ID = re.compile(r"[0-9a-f]{64}\Z")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def read_card(text: bytes, model: ModelId) -> Card:
    """The card in `text`, whose hash is `model`; ModelDamaged where it says more or other than a card can."""
    try:
        card = msgspec.json.decode(text, type=Card)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelDamaged(f"its card does not read: {error}", where=place(model), do="Pull it again") from None
    if card.format != 1 or card.id != model:
        raise ModelDamaged(
            f"its card is of format {card.format} or not canonical", where=place(model), do="Upgrade Sparring"
        )
    if bad := [name for name in card.files if not _FILE.match(name) or name in (CARD, EVIDENCE)]:
        raise ModelDamaged(f"its card names a file {bad[0][:40]!r}", where=place(model), do="Do not use it")
    return card


def check_whole(model: Model) -> bytes:
    """The card's text, if the model is exactly what its card says; ModelDamaged otherwise."""
    text = canonical(model.card)
    read_card(text, model.id)
    check(model.id, model.card, model.files)
    if missing := sorted(set(model.card.files) - set(model.files)):
        raise ModelDamaged(f"its {missing[0]} is missing", where=place(model.id), do="Give every file that it names")
    return text


def check_id(model: ModelId) -> None:
    """Missing where `model` cannot be an id: no other text may become a path or a key."""
    if not ID.match(model):
        raise Missing(f"{model[:80]!r} is not a model's id", where="registry", do="Give its 64 hex digits")


def check_has(card: Card, model: ModelId, name: str) -> None:
    """Missing where the model has no file of that name."""
    if name not in card.files:
        raise Missing(f"it has no file {name[:80]!r}", where=place(model), do=f"Ask for {', '.join(card.files)}")


def check_evidence(model: ModelId, evidence: Evidence) -> None:
    """Refused where the evaluation diverged."""
    if not (math.isfinite(evidence.mean) and math.isfinite(evidence.sd)):
        raise Refused(
            f"its return is {evidence.mean} ± {evidence.sd}",
            where=place(model),
            do="Evaluate it again; a model that diverged is not worth keeping",
            field="evidence",
        )


def no_such(model: ModelId) -> Missing:
    """The model is not in this registry."""
    return Missing("there is no such model here", where=place(model), do="`spar models list` shows those that are")


def gone(model: ModelId, name: str) -> ModelDamaged:
    """The model is here, and one of its files is not."""
    return ModelDamaged(f"its {name} is gone", where=place(model), do="Publish or pull it again")


def place(model: ModelId) -> str:
    """Where an error about a model says that it is."""
    return f"model {model[:12]}"
