"""Champions: the key that signs them, and the log of each game, which is an append-only list of signed entries.

    champions/<game>/999999999992-000007.json

The first half of the name counts down, so that the newest entry is the first of a listing. An entry is created only
where nothing has its name: of two writers with one counter the second is refused, and takes the next. Counters rise
over all of a game's versions and seats together, so a client that is served by the champion for all seats today and by
its seat's own champion tomorrow never sees one go back. Each entry lists the newest counter of every version and seat
before it, so the champion of any of them is two reads away however long the log. Its signature covers the whole entry.

The signing key is a file that its owner alone can read, made once, and never replaced without a word. The registry
holds its public name (`trust`), created only where there is none, so that two machines cannot sign with two keys. A
machine without the key file reads and verifies, and signs nothing.
"""

import base64
import logging
import os
import re
import secrets
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sparring.durable import create_file, disk_errors, folder_name
from sparring.errors import ConfigError, Missing, ModelDamaged
from sparring.registry.protocol import Evidence, Objects
from sparring.wire.champion import Champion, Signed, canonical, key_name, verify
from sparring.wire.ids import GameId, ModelId

TRUST = "trust"
MAX_TRUST_BYTES = 200
MAX_ENTRY_BYTES = 1 << 20
READERS = 8
LISTED = 8  # names in a listing for the newest entry, in case a file that is no entry sorts before it
_LAST = 10**12 - 1
_NAME = re.compile(r"(\d{12})-(\d{6,12})\.json\Z")
Kind = Literal["promotion", "rollback", "re-sign"]

log = logging.getLogger(__name__)


class SigningKey:
    """The key of one registry, in the file `path`; None: this machine has no key, and makes none."""

    def __init__(self, objects: Objects, path: Path | None) -> None:
        self._objects, self._path = objects, path
        self._trust = ""  # never changes once it is written
        self._key: Ed25519PrivateKey | None = None

    @property
    def trust(self) -> str:
        """The key's public name. Where a key file is here it is checked; where nothing is written yet, one is made."""
        if self._key is None and ((self._path is not None and self._path.exists()) or not self._written()):
            self.private()
        return self._trust

    def private(self) -> Ed25519PrivateKey:
        """The key itself; Missing where this machine has none, ConfigError where it has another."""
        if self._key is None:
            self._key = self._agreed()
        return self._key

    def _agreed(self) -> Ed25519PrivateKey:
        written = self._written()
        made = self._path is not None and not self._path.exists()
        signed = made and (written or next(iter(self._objects.list("champions/", 1)), None))
        if self._path is None or (signed and not self._path.exists()):
            raise Missing(
                f"the key that signs champions here{f' ({written})' if written else ''} is not on this machine",
                where=str(self._path or self._objects),
                do="Copy it from a backup or from the machine that has it to registry.signing_key (mode 600)",
            )
        if made:
            _make_key(self._path)
        key = _read_key(self._path)
        mine = key_name(key.public_key())
        if not written and not self._objects.put_new(TRUST, mine.encode()):
            written = self._written()
        if written and written != mine:
            if made:
                self._path.unlink(missing_ok=True)  # it signed nothing, and never may here
            raise ConfigError(
                f"champions in {self._objects} are signed by {written}, and this key is {mine}",
                where=str(self._path),
                do="Copy the right key over it, or set registry.signing_key to where it is",
            )
        self._trust = mine
        return key

    def _written(self) -> str:
        if not self._trust:
            self._trust = (self._objects.get(TRUST, MAX_TRUST_BYTES) or b"").decode("ascii", "replace").strip()
        return self._trust


def _make_key(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            create_file(path, pem, 0o600)
        except FileExistsError:
            return  # another process made it first: that one is the key


def _read_key(path: Path) -> Ed25519PrivateKey:
    fd = os.open(path, os.O_RDONLY)
    with os.fdopen(fd, "rb") as file:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            raise ConfigError("others may read the signing key", where=str(path), do=f"Run `chmod 600 {path}`")
        pem = file.read(4096)
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("it is not an Ed25519 key in PEM", where=str(path), do="Restore it from a backup")
    return key


class CounterTaken(Exception):
    """Another writer appended an entry with this counter first."""


@dataclass(frozen=True, slots=True)
class ChampionEntry:
    """One verified entry. A re-sign extends the expiry of the entry before it and changes nothing else."""

    kind: Kind
    champion: Champion
    signed: Signed  # `champion` as it is signed for clients
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class LogHead:
    """The newest counter of a game's log, and that of each version and seat."""

    counter: int
    newest: dict[tuple[str, int | None], int]


class _Newest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    seat: int | None
    counter: int


class _StoredEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = 1
    writer: str  # random: a writer whose answer was lost recognises its own entry
    newest_before: tuple[_Newest, ...]
    kind: Kind
    signed: Signed
    evidence: Evidence
    signature: str = ""  # by the registry's signing key, over all of the above

    def signed_bytes(self) -> bytes:
        return canonical(msgspec.structs.replace(self, signature=""))


_STORED_ENTRY = msgspec.json.Decoder(_StoredEntry)


class ChampionLog:
    """The logs of all games of one registry. Verified entries stay in memory: an entry never changes.

    Safe to call from several threads. A champion may be answered from memory for `fresh_s` seconds."""

    def __init__(self, objects: Objects, key: SigningKey, fresh_s: float = 0.0) -> None:
        self._objects, self._key, self._fresh_s = objects, key, fresh_s
        self._known: dict[tuple[GameId, int], tuple[LogHead, ChampionEntry]] = {}
        self._heads: dict[GameId, tuple[float, LogHead]] = {}  # with the monotonic second when it was read
        self._lock = threading.Lock()  # of many threads that ask at once one reads, the others take its result

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have, or had, a champion; ModelDamaged where no entry of the log verifies."""
        return sorted({version for version, _ in self.places(game)})

    def places(self, game: GameId) -> list[tuple[str, int | None]]:
        """The versions and seats that have, or had, a champion; None stands for all seats, and comes first."""
        head = self.head(game)
        newest = head.newest or self._head(game).newest
        return sorted(newest, key=lambda place: (place[0], -1 if place[1] is None else place[1]))

    def newest(self, game: GameId, version: str, seat: int | None) -> ChampionEntry | None:
        """The newest entry of exactly that version and seat; ModelDamaged where it does not verify."""
        folder_name(version, "version")  # refuses what cannot name a version
        counter = self._head(game, self._fresh_s).newest.get((version, seat))
        return None if counter is None else self._entry(game, counter)[1]

    def history(self, game: GameId, version: str, seat: int | None) -> list[ChampionEntry]:
        """Every entry of that version and seat, oldest first."""
        with ThreadPoolExecutor(READERS) as pool:
            entries = [entry for _, entry in pool.map(lambda c: self._entry(game, c), self._counters(game))]
        return [entry for entry in entries if (entry.champion.version, entry.champion.seat) == (version, seat)]

    def champions(self, game: GameId) -> set[ModelId]:
        """The models that are champion of any version and seat. A damaged entry is left out, and logged."""
        found = set()
        try:
            for counter in self._head(game).newest.values():
                found.add(self._entry(game, counter)[1].champion.model)
        except ModelDamaged as error:
            log.warning("no champion is shown for it: %s", error)
        return found

    def head(self, game: GameId) -> LogHead:
        """Where the next entry goes. Where the newest entry is damaged, a new one is still possible after it."""
        try:
            return self._head(game)
        except ModelDamaged as error:
            log.warning("the log's newest entry is damaged: %s", error)
        counters = self._counters(game)
        for counter in reversed(counters):
            try:
                return LogHead(counters[-1], self._entry(game, counter)[0].newest)
            except ModelDamaged as error:
                log.warning("skipped: %s", error)
        return LogHead(counters[-1], {})

    def append(self, entry: ChampionEntry, after: LogHead) -> None:
        """Store the entry, durable on return; CounterTaken where another writer appended since `after` was read."""
        said = entry.champion
        newest_before = tuple(_Newest(*slot, counter) for slot, counter in after.newest.items())
        writer = secrets.token_hex(16)
        stored = _StoredEntry(
            writer=writer, newest_before=newest_before, kind=entry.kind, signed=entry.signed, evidence=entry.evidence
        )
        signature = base64.b64encode(self._key.private().sign(stored.signed_bytes())).decode()
        text = msgspec.json.encode(msgspec.structs.replace(stored, signature=signature))
        key = _key(said.game, said.counter)
        if not self._objects.put_new(key, text) and self._objects.get(key, MAX_ENTRY_BYTES) != text:
            raise CounterTaken(key)
        head = LogHead(said.counter, {**after.newest, (said.version, said.seat): said.counter})
        with self._lock:
            self._known[said.game, said.counter] = head, entry
            self._heads[said.game] = time.monotonic(), head

    def _head(self, game: GameId, max_age_s: float = 0.0) -> LogHead:
        with self._lock:
            read_s, known = self._heads.get(game, (0.0, None))
            now_s = time.monotonic()
            if known is not None:
                if now_s - read_s < max_age_s:
                    return known
                # Asking for the next name is cheaper than a listing, and usually nothing has it. Only a game's first
                # entry may have any counter.
                if known.counter and self._objects.get(_key(game, known.counter + 1), MAX_ENTRY_BYTES) is None:
                    self._heads[game] = now_s, known
                    return known
            counters = self._counters(game, LISTED)
            head = self._entry(game, counters[-1])[0] if counters else LogHead(0, {})
            self._heads[game] = now_s, head
            return head

    def _counters(self, game: GameId, limit: int | None = None) -> list[int]:
        names = (_NAME.search(found.key) for found in self._objects.list(_folder(game), limit))
        return sorted(int(name[2]) for name in names if name and int(name[1]) + int(name[2]) == _LAST)

    def _entry(self, game: GameId, counter: int) -> tuple[LogHead, ChampionEntry]:
        """That entry, and the log's head once it is in."""
        if (known := self._known.get((game, counter))) is not None:
            return known
        key = _key(game, counter)
        text = self._objects.get(key, MAX_ENTRY_BYTES)
        if text is None:
            raise _damaged(key, "it is gone")
        try:
            stored = _STORED_ENTRY.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(key, f"it does not read: {error}") from None
        trust = self._key.trust
        if stored.format != 1 or msgspec.json.encode(stored) != text or not _signature_holds(stored, trust):
            raise _damaged(key, f"it is not signed by {trust}")
        champion = verify(stored.signed, trust)
        if (champion.counter, champion.game) != (counter, game):
            raise _damaged(key, f"it is the entry {champion.counter} of {champion.game}")
        newest = {(before.version, before.seat): before.counter for before in stored.newest_before}
        head = LogHead(counter, {**newest, (champion.version, champion.seat): counter})
        entry = ChampionEntry(stored.kind, champion, stored.signed, stored.evidence)
        return self._known.setdefault((game, counter), (head, entry))


def rollback_target(history: list[ChampionEntry]) -> ModelId | None:
    """The champion before the present one; None where there was none.

    Promotions form a stack and a rollback pops it, so a second rollback goes further back
    instead of returning to what the first one removed.
    """
    stack: list[ModelId] = []
    for entry in history:
        model = entry.champion.model
        if entry.kind == "rollback" and model in stack:
            while stack[-1] != model:
                stack.pop()
        elif not stack or stack[-1] != model:
            stack.append(model)
    return stack[-2] if len(stack) > 1 else None


def _signature_holds(stored: _StoredEntry, trust: str) -> bool:
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(trust.removeprefix("ed25519:"), validate=True))
        signature = base64.b64decode(stored.signature, validate=True)
        public.verify(signature, stored.signed_bytes())
    except (InvalidSignature, ValueError):
        return False
    return base64.b64encode(signature).decode() == stored.signature  # base64 has several spellings of one signature


def _folder(game: GameId) -> str:
    return f"champions/{folder_name(game, 'game')}/"


def _key(game: GameId, counter: int) -> str:
    return f"{_folder(game)}{_LAST - counter:012}-{counter:06}.json"


def _damaged(key: str, wrong: str) -> ModelDamaged:
    return ModelDamaged(wrong, where=key, do="Restore it from a backup, or promote a model again")
