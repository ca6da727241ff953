"""Who reigned when, in a bucket: one log of sealed entries for each game, appended by compare-and-swap.

    champions/<game>/999999999992-000007.json

The name's first half counts down, so that the newest entry is the first of a list. An entry is put only where nothing
has its name: of two writers with one counter the second is refused, and asks for the next. Each entry tells the newest
counter of every lane (version and seat) before it, so the reign of any lane is two reads away however long the log;
the seal, a signature over the whole entry, keeps that index as true as the manifest.
"""

import base64
import contextlib
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sparring.durable import folder_name
from sparring.errors import ModelDamaged
from sparring.registry.champions.log import MAX_RECORD_BYTES, ChampionEntry, Record
from sparring.registry.champions.rules import Overtaken
from sparring.registry.s3.bucket import Bucket
from sparring.wire.champion import Champion, canonical, verify
from sparring.wire.ids import GameId, ModelId

MAX_ENTRY_BYTES = 16 * MAX_RECORD_BYTES
READERS = 8
STRANGERS = 8  # a list for the newest entry is this long, in case something that is none lies before it
_LAST = 10**12 - 1
_NAME = re.compile(r"(\d{12})-(\d{6,12})\.json\Z")
_Lane = tuple[str, int | None]  # version, seat

log = logging.getLogger(__name__)


class LaneHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest counter of one version and seat."""

    version: str
    seat: int | None
    counter: int


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One object of the log."""

    format: int = 1
    writer: str  # drawn for each try: whose entry it is stays known when an answer was lost
    before: tuple[LaneHead, ...]
    record: Record
    seal: str = ""  # by the registry's key, over all of the above

    def sealed_bytes(self) -> bytes:
        """What the seal is made over."""
        return canonical(msgspec.structs.replace(self, seal=""))


class _Head(msgspec.Struct, frozen=True):
    """Where a game's log stands."""

    counter: int
    lanes: dict[_Lane, int]


class BucketChampionLog:
    """See `succession.Log`. Entries that verified stay in memory: an entry never changes."""

    def __init__(self, bucket: Bucket, private: Callable[[], Ed25519PrivateKey], trust: Callable[[], str]) -> None:
        self._bucket, self._private, self._trust = bucket, private, trust
        self._known: dict[tuple[GameId, int], tuple[LogEntry, ChampionEntry]] = {}
        self._heads: dict[GameId, tuple[float, _Head]] = {}  # with the monotonic second when it was seen
        self._any_at = -1.0e9
        self._any = False
        self._looking = threading.Lock()  # of many who ask at once one looks, the others take what it saw

    def any(self) -> bool:
        """Whether anything was ever signed here."""
        with self._looking:
            if not self._any and time.monotonic() - self._any_at >= self._bucket.address.fresh_s:
                self._any = next(self._bucket.list("champions/", most=1), None) is not None
                self._any_at = time.monotonic()
            return self._any

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have, or had, a champion."""
        return sorted({version for version, _ in self._head(game).lanes})

    def newest(self, game: GameId, version: str, seat: int | None, trust: str) -> ChampionEntry | None:
        """The present reign of exactly that lane; ModelDamaged where its entry does not verify."""
        folder_name(version, "version")  # refused alike in every registry
        counter = self._head(game, aged_s=self._bucket.address.fresh_s).lanes.get((version, seat))
        return None if counter is None else self._entry(game, counter)[1]

    def history(self, game: GameId, version: str, seat: int | None, trust: str) -> list[ChampionEntry]:
        """Every reign of the lane, oldest first."""
        reigns = [reign for _, reign in self._entries(game, self._counters(game))]
        return [one for one in reigns if (one.champion.version, one.champion.seat) == (version, seat)]

    def reigning(self, game: GameId, trust: str) -> set[ModelId]:
        """The models that are champion of any version and seat. A damaged entry is left out, and logged."""
        found = set()
        try:
            for counter in self._head(game).lanes.values():
                found.add(self._entry(game, counter)[1].champion.model)
        except ModelDamaged as error:
            log.warning("no champion is shown for it: %s", error)
        return found

    @contextlib.contextmanager
    def writing(self, game: GameId) -> Iterator[int]:
        """The game's next counter, as far as the log is known now; `append` finds out whether it still is."""
        try:
            head = self._head(game)
        except ModelDamaged as error:  # a promotion is the way out of it
            log.warning("the log's newest entry is damaged: %s", error)
            head = self._mended(game)
        with self._looking:
            self._heads[game] = time.monotonic(), head
        yield head.counter + 1

    def append(self, champion: Champion, record: Record) -> None:
        """Keep the record where nothing has its counter; Overtaken otherwise."""
        game = champion.game
        lanes = self._heads[game][1].lanes
        whole = msgspec.structs.replace(record, hash=record.digest())
        before = tuple(LaneHead(*lane, counter) for lane, counter in lanes.items())
        entry = LogEntry(writer=secrets.token_hex(16), before=before, record=whole)
        seal = base64.b64encode(self._private().sign(entry.sealed_bytes())).decode()
        entry = msgspec.structs.replace(entry, seal=seal)
        text, key = msgspec.json.encode(entry), _key(game, champion.counter)
        if not self._bucket.put_new(key, text) and self._bucket.get(key, MAX_ENTRY_BYTES) != text:
            with self._looking:
                self._heads.pop(game, None)
            raise Overtaken(key)
        with self._looking:
            self._any = True
            self._known[game, champion.counter] = entry, ChampionEntry(champion, whole)
            lanes = {**lanes, (champion.version, champion.seat): champion.counter}
            self._heads[game] = time.monotonic(), _Head(champion.counter, lanes)

    def _head(self, game: GameId, aged_s: float = 0.0) -> _Head:
        """Where the log stands, as it was seen at most `aged_s` ago."""
        with self._looking:
            at_s, known = self._heads.get(game, (0.0, None))
            now_s = time.monotonic()
            if known is not None:
                if now_s - at_s < aged_s:
                    return known
                # An exact name is cheaper to ask for than a list, and the usual answer is that there is none. Only a
                # game's first entry may have any counter.
                if known.counter and self._bucket.get(_key(game, known.counter + 1), MAX_ENTRY_BYTES) is None:
                    self._heads[game] = now_s, known
                    return known
            newest = self._counters(game, most=STRANGERS)
            head = self._after(game, newest[-1]) if newest else _Head(0, {})
            self._heads[game] = now_s, head
            return head

    def _after(self, game: GameId, counter: int) -> _Head:
        """How the log stands once the entry `counter` is in it."""
        entry, reign = self._entry(game, counter)
        lanes = {(head.version, head.seat): head.counter for head in entry.before}
        return _Head(counter, {**lanes, (reign.champion.version, reign.champion.seat): counter})

    def _mended(self, game: GameId) -> _Head:
        """The lanes as the newest sound entry tells them; counters go on from the newest of all."""
        counters = self._counters(game)
        for counter in reversed(counters):
            try:
                return _Head(counters[-1], self._after(game, counter).lanes)
            except ModelDamaged as error:
                log.warning("passed over: %s", error)
        return _Head(counters[-1] if counters else 0, {})

    def _counters(self, game: GameId, most: int | None = None) -> list[int]:
        names = (_NAME.search(entry.key) for entry in self._bucket.list(_folder(game), most=most))
        return sorted(int(name[2]) for name in names if name and int(name[1]) + int(name[2]) == _LAST)

    def _entries(self, game: GameId, counters: list[int]) -> list[tuple[LogEntry, ChampionEntry]]:
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(lambda counter: self._entry(game, counter), counters))

    def _entry(self, game: GameId, counter: int) -> tuple[LogEntry, ChampionEntry]:
        known = self._known.get((game, counter))
        if known is not None:
            return known
        key = _key(game, counter)
        text = self._bucket.get(key, MAX_ENTRY_BYTES)
        if text is None:
            raise _damaged(key, "it is gone")
        try:
            entry = msgspec.json.decode(text, type=LogEntry)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(key, f"it does not read: {error}") from None
        trust = self._trust()
        if entry.format != 1 or msgspec.json.encode(entry) != text or not _seal_holds(entry, trust):
            raise _damaged(key, f"it is not sealed by {trust}")
        champion = verify(entry.record.signed, trust)
        if (champion.counter, champion.game) != (counter, game) or entry.record.hash != entry.record.digest():
            raise _damaged(key, f"it is the record {champion.counter} of {champion.game}")
        return self._known.setdefault((game, counter), (entry, ChampionEntry(champion, entry.record)))


def _seal_holds(entry: LogEntry, trust: str) -> bool:
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(trust.removeprefix("ed25519:"), validate=True))
        seal = base64.b64decode(entry.seal, validate=True)
        public.verify(seal, entry.sealed_bytes())
    except (InvalidSignature, ValueError):
        return False
    return base64.b64encode(seal).decode() == entry.seal  # base64 has several spellings; a seal has one


def _folder(game: GameId) -> str:
    return f"champions/{folder_name(game, 'game')}/"


def _key(game: GameId, counter: int) -> str:
    return f"{_folder(game)}{_LAST - counter:012}-{counter:06}.json"


def _damaged(key: str, wrong: str) -> ModelDamaged:
    return ModelDamaged(wrong, where=key, do="Bring it back from a backup, or promote a model anew")
