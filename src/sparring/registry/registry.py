"""The registry: models by content, published whole and fetched exactly, and who is champion of a game.

The same on every backend's objects: promotion, rollback, and re-signing before a manifest expires, too.
"""

import hashlib
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec

from sparring.durable import folder_name, read_inside
from sparring.errors import ConfigError, Missing, ModelDamaged, Refused, StoreFailed, Unreachable
from sparring.registry.champions import READERS, ChampionEntry, ChampionLog, CounterTaken, Kind, SigningKey
from sparring.registry.protocol import Evidence, ListedModel, Objects
from sparring.wire.champion import Champion, Signed, canonical, sign
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Card, Model, check
from sparring.wire.strengths import Strengths

CARD, EVIDENCE = "card.json", "evidence.json"
EVIDENCE_FOLDER = "evidence/"
# Made once: msgspec crashes where two threads are the first to decode a type (docs/decisions/0330).
_CARD, _EVIDENCE = msgspec.json.Decoder(Card), msgspec.json.Decoder(Evidence)
_SIGNED = msgspec.json.Decoder(Signed)
MAX_CARD_BYTES = 4 << 20
MAX_FILE_BYTES = 2 << 30
DAY_S = 86_400.0
TRIES = 1_000  # each lost try means that another writer appended an entry
ID = re.compile(r"[0-9a-f]{64}\Z")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")

log = logging.getLogger(__name__)


class Registry(ABC):
    """A context manager. Readers see a model whole or not at all. A backend adds `publish`, `ids` and `link`."""

    models_prefix = ""

    def __init__(
        self,
        objects: Objects,
        key: SigningKey,
        fresh_s: float,
        *,
        champion_days: float = 7.0,
        rollout_share: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """For `fresh_s` seconds a champion may be answered from memory. `clock` gives Unix seconds."""
        self._objects, self._key, self._clock = objects, key, clock
        self._log = ChampionLog(objects, key, fresh_s)
        self._life_ms, self._rollout_share = int(champion_days * DAY_S * 1000), rollout_share
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

    def find(self, text: str) -> ModelId:
        """The one model whose id begins with `text`; Missing where there is none, ConfigError where there are more."""
        found = [model for model in self.ids() if model.startswith(text.lower())]
        if not found:
            raise Missing("no model's id begins so", where=text[:80], do="`spar models list` shows those that are")
        if len(found) > 1:
            few = ", ".join(model[:12] for model in found[:4])
            raise ConfigError(f"{len(found)} models begin so: {few}", where=text, do="Give more digits")
        return found[0]

    def fetch(self, model: ModelId) -> Model:
        """Those exact bytes, verified; Missing or ModelDamaged otherwise. Never another instead."""
        card = self.card(model)
        return check(model, card, {name: self._read(model, name) for name in card.files})

    def card(self, model: ModelId) -> Card:
        """The card, read again each time, so that damage is noticed; Missing or ModelDamaged."""
        text = self._read(model, CARD)
        if (found := hashlib.sha256(text).hexdigest()) != model:
            raise ModelDamaged(f"its card hashes to {found[:12]}", where=place(model), do="Publish or pull it again")
        if model not in self._cards:
            self._cards[model] = read_card(text, model)
        return self._cards[model]

    def file(self, model: ModelId, name: str) -> bytes:
        """One file of a model, "card.json" among them, verified."""
        if name == CARD:
            return canonical(self.card(model))
        card = self._card_with(model, name)
        return check(model, card, {name: self._read(model, name)}).files[name]

    def games(self) -> list[GameId]:
        """Every game that has a model."""
        return sorted({card.game for _, card in self._readable_cards(self.ids())})

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

    def saw(self, game: GameId, first_received_ms: int) -> list[ModelId]:
        """Models whose training may have read rows received from then on, and those made from such models."""
        found: list[ModelId] = []
        for listed in self.models(game):  # oldest first, so parents come before
            lineage = listed.card.lineage
            read = lineage.store_until_ms is not None and lineage.store_until_ms >= first_received_ms
            if read or any(parent in found for parent in lineage.parents):
                found.append(listed.card.id)
        return found

    def evidence(self, model: ModelId) -> Evidence | None:
        """The result of the model's newest evaluation."""
        return self._read_evidence(_evidence_key(model))

    def save_evidence(self, model: ModelId, evidence: Evidence) -> None:
        """Store the result of an evaluation, whether or not the model is promoted; lists show the newest."""
        self.card(model)  # Missing where it is not there
        if not (math.isfinite(evidence.mean) and math.isfinite(evidence.sd)):
            wrong = f"its return is {evidence.mean} ± {evidence.sd}"
            do = "Evaluate it again; a model that diverged is not worth keeping"
            raise Refused(wrong, where=place(model), do=do, field="evidence")
        self._objects.put(_evidence_key(model), canonical(evidence))

    @property
    def trust(self) -> str:
        """The public name of the key that signs champions: what `connect(trust=…)` takes. Made on first need."""
        return self._key.trust

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have, or had, a champion."""
        return self._log.versions(game)

    def places(self, game: GameId) -> list[tuple[str, int | None]]:
        """The versions and seats that have, or had, a champion; None stands for all seats."""
        return self._log.places(game)

    def history(self, game: GameId, version: str, seat: int | None = None) -> list[ChampionEntry]:
        """Every entry of that version and seat, oldest first, with its evidence."""
        return self._log.history(game, version, seat)

    def champion(self, game: GameId, version: str, seat: int | None = None) -> Signed | None:
        """The signed manifest, re-signed in the second half of its life; None where there is no champion.

        A seat without a champion of its own is served by the one for all seats."""
        entry = None if seat is None else self._log.newest(game, version, seat)
        entry = entry or self._log.newest(game, version, None)
        if entry is not None and self._life_left(entry) < 0.5:
            entry = self._re_signed(entry)
        return None if entry is None else entry.signed

    def strengths(self, game: GameId, version: str) -> Signed | None:
        """The signed ladder of strengths that is sold; None where there is none."""
        text = self._objects.get(_strengths_key(game, version), MAX_CARD_BYTES)
        try:
            return None if text is None else _SIGNED.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            do = "Make them again: `spar models strengths GAME --make`"
            raise ModelDamaged(f"they do not read: {error}", where=f"strengths of {game}", do=do) from None

    def sell(self, strengths: Strengths) -> Signed:
        """Sign this ladder and store it in place of the one before; Missing where a model of it is not here."""
        for model in sorted(strengths.models):
            self.card(model)
        signed = sign(strengths, self._key.private())
        self._objects.put(_strengths_key(strengths.game, strengths.version), msgspec.json.encode(signed))
        return signed

    def promote(
        self, game: GameId, model: ModelId, evidence: Evidence, seat: int | None = None, *, above: int = 0
    ) -> Signed:
        """Make the model champion of its version with the next counter; a game's first one is the next after `above`.
        One of several kinds of seats becomes champion of each of its own, or of `seat`.

        During a roll-out, clients outside `rollout_share` keep the previous champion; a rollback
        (`evidence.by` is "rollback") reaches all clients at once.
        """
        card = self.fetch(model).card
        if card.game != game:
            raise Refused(f"it plays {card.game}", where=place(model), do=f"Promote a model of {game}", field="game")
        if seat is None and card.kind:
            return [self.promote(game, model, evidence, one, above=above) for one in card.kind][-1]
        if seat is not None and card.kind and seat not in card.kind:
            do = f"Promote it for one of its seats: {', '.join(map(str, card.kind))}"
            raise Refused(f"it does not play seat {seat}", where=place(model), do=do, field="seat", value=seat)
        self._key.private()  # raises before anything is written
        self.save_evidence(model, evidence)
        rollback = evidence.by == "rollback"

        def next_entry(counter: int) -> ChampionEntry:
            if 1 < counter <= above:
                raise Refused(
                    f"its next counter is {counter}, and clients have seen {above} from another registry",
                    where=f"champions of {game}",
                    do="Copy into a registry that has no champion of this game yet",
                )
            now = self._newest_or_none(game, card.version, seat)
            previous = None if now is None or rollback else now.champion.model
            if now is not None and now.champion.model == model:
                previous = now.champion.previous  # promoted again: the same roll-out, with today's share
            issued = self._now_ms()
            champion = Champion(
                game=game,
                version=card.version,
                seat=seat,
                model=model,
                spec=card.spec,
                counter=counter if counter > 1 else above + 1,
                issued_at_ms=issued,
                expires_at_ms=issued + self._life_ms,
                previous=previous,
                rollout_share=1.0 if rollback else self._rollout_share,
            )
            return self._signed("rollback" if rollback else "promotion", champion, evidence)

        return self._append(game, next_entry).signed

    def _newest_or_none(self, game: GameId, version: str, seat: int | None) -> ChampionEntry | None:
        try:
            return self._log.newest(game, version, seat)
        except ModelDamaged as error:  # a promotion repairs it
            log.warning("the entry before this promotion is damaged: %s", error)
            return None

    def _re_signed(self, old: ChampionEntry) -> ChampionEntry:
        said = old.champion

        def next_entry(counter: int) -> ChampionEntry:
            newest = self._log.newest(said.game, said.version, said.seat) or old
            if self._life_left(newest) >= 0.5:
                return newest  # another process re-signed it first
            now = self._now_ms()
            champion = msgspec.structs.replace(
                newest.champion, counter=counter, issued_at_ms=now, expires_at_ms=now + self._life_ms
            )
            return self._signed("re-sign", champion, newest.evidence)

        try:
            return self._append(said.game, next_entry)
        except (StoreFailed, Unreachable, Missing) as error:
            if self._life_left(old) <= 0:
                raise
            log.warning("the champion could not be re-signed; its manifest is still valid: %s", error)
            return old

    def _append(self, game: GameId, make: Callable[[int], ChampionEntry]) -> ChampionEntry:
        """Append what `make` returns for the next counter, or return it where it is in the log already."""
        for _ in range(TRIES):
            head = self._log.head(game)
            entry = make(head.counter + 1)
            if entry.champion.counter <= head.counter:
                return entry
            try:
                self._log.append(entry, head)
            except CounterTaken:
                continue
            return entry
        raise StoreFailed(
            f"{TRIES} times another writer was first", where=f"champions of {game}", do="See who promotes so often"
        )

    def _signed(self, kind: Kind, champion: Champion, evidence: Evidence) -> ChampionEntry:
        return ChampionEntry(kind, champion, sign(champion, self._key.private()), evidence)

    def _life_left(self, entry: ChampionEntry) -> float:
        """The share of its life that a manifest still has."""
        life_ms = max(1, entry.champion.expires_at_ms - entry.champion.issued_at_ms)
        return (entry.champion.expires_at_ms - self._now_ms()) / life_ms

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _card_with(self, model: ModelId, name: str) -> Card:
        """The card of a model that has a file of that name; Missing otherwise."""
        card = self._cards.get(model) or self.card(model)
        if name != CARD and name not in card.files:
            raise Missing(f"it has no file {name[:80]!r}", where=place(model), do=f"Ask for {', '.join(card.files)}")
        return card

    def _read(self, model: ModelId, name: str) -> bytes:
        if not ID.match(model):  # no other text may become a path or a key
            raise Missing(f"{model[:80]!r} is not a model's id", where="registry", do="Give its 64 hex digits")
        found = self._objects.get(self._key_of(model, name), MAX_CARD_BYTES if name == CARD else MAX_FILE_BYTES)
        if found is not None:
            return found
        if name == CARD and not self._is_begun(model):
            raise Missing(
                "there is no such model here", where=place(model), do="`spar models list` shows those that are"
            )
        raise ModelDamaged(f"its {name} is gone", where=place(model), do="Publish or pull it again")

    def _is_begun(self, model: ModelId) -> bool:
        """Whether a model without a card is damaged, instead of not being there at all."""
        return False

    def _key_of(self, model: ModelId, name: str) -> str:
        return f"{self.models_prefix}{model}/{name}"

    def _readable_cards(self, ids: Iterable[ModelId]) -> list[tuple[ModelId, Card]]:
        def read(model: ModelId) -> Card | None:
            try:
                return self.card(model)
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
            return None if text is None else _EVIDENCE.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, ModelDamaged) as error:
            log.warning("%s does not read: %s", key, error)
            return None


def model_in(folder: Path) -> Model:
    """The model in an exported folder: card.json and the files that it names."""

    def read(name: str, max_bytes: int) -> bytes:
        try:
            return read_inside(folder, name, max_bytes)
        except FileNotFoundError:
            raise Missing(f"there is no {name}", where=str(folder), do="Give the folder of one model") from None

    return read_model(read)


def read_model(read: Callable[[str, int], bytes], wanted: ModelId | None = None) -> Model:
    """The model whose files `read` gives by name and largest size; its id is `wanted` where that is known before."""
    text = read(CARD, MAX_CARD_BYTES)
    found = ModelId(hashlib.sha256(text).hexdigest())
    if wanted not in (None, found):
        raise ModelDamaged(f"its card hashes to {found[:12]}", where=place(wanted), do="Do not use it")
    card = read_card(text, found)
    return check(found, card, {name: read(name, MAX_FILE_BYTES) for name in card.files})


def read_card(text: bytes, model: ModelId) -> Card:
    """The card in `text`, whose hash is `model`; ModelDamaged where it says more or other than a card can."""
    try:
        card = _CARD.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelDamaged(f"its card does not read: {error}", where=place(model), do="Pull it again") from None
    if card.format != 1 or card.id != model:
        wrong = f"its card is of format {card.format} or not canonical"
        raise ModelDamaged(wrong, where=place(model), do="Upgrade Sparring")
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


def place(model: ModelId) -> str:
    """Where an error about a model says that it is."""
    return f"model {model[:12]}"


def _strengths_key(game: GameId, version: str) -> str:
    return f"strengths/{folder_name(game, 'game')}/{folder_name(version, 'version')}.json"


def _evidence_key(model: ModelId) -> str:
    return f"{EVIDENCE_FOLDER}{model}.json"
