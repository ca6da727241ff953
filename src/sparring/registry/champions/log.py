"""Who reigned when: one append-only folder of signed records for each version and seat of a game.

    champions/<game>/<version>/<seat or "all">/000007.json

The newest record is the reign. Counters rise over all of a game's versions and seats together, so a
client that is served by "all" today and by its seat's own champion tomorrow never sees one go back.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sparring.durable import append_file, folder_name, kept, make_folders, original_name, read_inside
from sparring.errors import ModelDamaged
from sparring.registry.protocol import Evidence
from sparring.wire.champion import Champion, Signed, canonical, verify
from sparring.wire.ids import GameId, ModelId

MAX_RECORD_BYTES = 64 << 10
log = logging.getLogger(__name__)
_RECORD = re.compile(r"^(\d{6,})\.json$")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One signing. A renewal prolongs the reign before it and changes nothing else."""

    kind: Literal["promotion", "rollback", "renewal"]
    signed: Signed
    evidence: Evidence
    hash: str = ""  # SHA-256 over the other three: the signature covers only the manifest

    def digest(self) -> str:
        """What `hash` must be."""
        return hashlib.sha256(canonical((self.kind, self.signed, self.evidence))).hexdigest()


@dataclass(frozen=True, slots=True)
class ChampionEntry:
    """A record whose signature held, and what it says."""

    champion: Champion
    record: Record


def before(history: Sequence[ChampionEntry]) -> ModelId | None:
    """The model that a rollback returns to: the one that reigned before the present one; None where none did.

    Promotions pile up and a rollback takes the top off, so a second rollback goes further back
    instead of returning to what the first one removed.
    """
    pile: list[ModelId] = []
    for reign in history:
        model = reign.champion.model
        if reign.record.kind == "rollback" and model in pile:
            while pile[-1] != model:
                pile.pop()
        elif not pile or pile[-1] != model:
            pile.append(model)
    return pile[-2] if len(pile) > 1 else None


class ChampionLog:
    """All records under `champions/`. Verified records stay in memory: a record's file never changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, ChampionEntry] = {}
        self._any = False

    def any(self) -> bool:
        """Whether anything was ever signed here."""
        self._any = self._any or next(self.root.glob("*/*/*/*.json"), None) is not None
        return self._any

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have, or had, a champion."""
        return sorted(original_name(entry.name) for entry in self._game(game).glob("*") if entry.is_dir())

    def newest(self, game: GameId, version: str, seat: int | None, trust: str) -> ChampionEntry | None:
        """The present reign of exactly that lane; ModelDamaged where its record does not verify."""
        lane = self._lane(game, version, seat)
        numbers = _numbers(lane)
        return self._read(lane, max(numbers), trust) if numbers else None

    def history(self, game: GameId, version: str, seat: int | None, trust: str) -> list[ChampionEntry]:
        """Every reign of the lane, oldest first."""
        lane = self._lane(game, version, seat)
        return [self._read(lane, number, trust) for number in sorted(_numbers(lane))]

    def reigning(self, game: GameId, trust: str) -> set[ModelId]:
        """The models that are champion of any version and seat. A damaged record is left out, and logged."""
        found = set()
        for lane in self._game(game).glob("*/*"):
            try:
                if numbers := _numbers(lane):
                    found.add(self._read(lane, max(numbers), trust).champion.model)
            except ModelDamaged as error:
                log.warning("no champion is shown for it: %s", error)
        return found

    @contextlib.contextmanager
    def writing(self, game: GameId) -> Iterator[int]:
        """The game's next counter, for the one who holds its lock."""
        folder = self._game(game)
        with kept(folder):
            make_folders(folder, self.root.parent)
            fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            lanes = folder.glob("*/*")
            yield 1 + max((number for lane in lanes for number in _numbers(lane)), default=0)
        finally:
            os.close(fd)

    def append(self, champion: Champion, record: Record) -> None:
        """Keep the record; durable on return. Only under `writing`."""
        lane = self._lane(champion.game, champion.version, champion.seat)
        with kept(lane):
            make_folders(lane, self.root.parent)
            whole = msgspec.structs.replace(record, hash=record.digest())
            path = lane / f"{champion.counter:06}.json"
            append_file(path, msgspec.json.encode(whole))
        self._known[path] = ChampionEntry(champion, whole)

    def _read(self, lane: Path, number: int, trust: str) -> ChampionEntry:
        path = lane / f"{number:06}.json"
        if path in self._known:
            return self._known[path]
        text = read_inside(lane, path.name, MAX_RECORD_BYTES)
        try:
            record = msgspec.json.decode(text, type=Record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(path, f"it does not read: {error}") from None
        if record.hash != record.digest() or msgspec.json.encode(record) != text:
            raise _damaged(path, "it does not hash to what it says")
        champion = verify(record.signed, trust)
        seat = "all" if champion.seat is None else str(champion.seat)
        if champion.counter != number or self._lane(champion.game, champion.version, champion.seat) != lane:
            raise _damaged(path, f"it is the record {champion.counter} of {champion.game} {champion.version} {seat}")
        return self._known.setdefault(path, ChampionEntry(champion, record))

    def _game(self, game: GameId) -> Path:
        return self.root / folder_name(game, "game")

    def _lane(self, game: GameId, version: str, seat: int | None) -> Path:
        return self._game(game) / folder_name(version, "version") / ("all" if seat is None else f"{seat:d}")


def _numbers(lane: Path) -> list[int]:
    try:
        names = os.listdir(lane)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [int(found[1]) for name in names if (found := _RECORD.match(name))]


def _damaged(path: Path, wrong: str) -> ModelDamaged:
    return ModelDamaged(wrong, where=str(path), do="Bring it back from a backup, or promote a model anew")
