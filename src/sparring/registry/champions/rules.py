"""Who reigns, decided on any log of reigns: promotions, rollbacks, and signing anew before a manifest expires."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparring.errors import Missing, ModelDamaged, Refused, StoreFailed, Unreachable
from sparring.registry.champions.log import ChampionEntry, Record
from sparring.registry.protocol import Evidence
from sparring.wire.champion import Champion, Signed, sign
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Card

DAY_S = 86_400.0
TRIES = 1_000  # each one lost means that another writer got a record in, so this is a very busy game

log = logging.getLogger(__name__)


class Overtaken(Exception):
    """Another writer took the counter first; ask for the next one."""


class Log(Protocol):
    """The signed records of every game. Counters rise over all versions and seats of a game together."""

    def any(self) -> bool:
        """Whether anything was ever signed here."""
        ...

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have, or had, a champion."""
        ...

    def newest(self, game: GameId, version: str, seat: int | None, trust: str) -> ChampionEntry | None:
        """The present reign of exactly that lane; ModelDamaged where its record does not verify."""
        ...

    def history(self, game: GameId, version: str, seat: int | None, trust: str) -> list[ChampionEntry]:
        """Every reign of the lane, oldest first."""
        ...

    def reigning(self, game: GameId, trust: str) -> set[ModelId]:
        """The models that are champion of any version and seat. A damaged record is left out, and logged."""
        ...

    def writing(self, game: GameId) -> AbstractContextManager[int]:
        """The game's next counter; within the block `newest` is what stood right before it."""
        ...

    def append(self, champion: Champion, record: Record) -> None:
        """Keep the record; durable on return. Only within `writing`; Overtaken where another took its counter."""
        ...


class Signer(Protocol):
    """The key of one registry."""

    @property
    def trust(self) -> str:
        """Its public name."""
        ...

    def private(self) -> Ed25519PrivateKey:
        """The key itself; Missing where this machine has none."""
        ...


class ChampionRules:
    """Champions of every game of one registry. `clock` gives Unix seconds."""

    def __init__(
        self, reigns: Log, signer: Signer, *, champion_days: float, rollout_share: float, clock: Callable[[], float]
    ) -> None:
        self._reigns, self._signer, self._clock = reigns, signer, clock
        self._life_ms, self._rollout_share = int(champion_days * DAY_S * 1000), rollout_share

    def champion(self, game: GameId, version: str, seat: int | None) -> Signed | None:
        """See `registry/protocol.py`. A seat without a champion of its own is served by the one for all seats."""
        if not self._reigns.any():
            return None
        trust = self._signer.trust
        reign = None if seat is None else self._reigns.newest(game, version, seat, trust)
        reign = reign or self._reigns.newest(game, version, None, trust)
        if reign is None:
            return None
        if self._life_left(reign) < 0.5:
            reign = self._renewed(reign)
        return reign.record.signed

    def reigning(self, game: GameId) -> set[ModelId]:
        """The models that are champion of any version and seat."""
        return self._reigns.reigning(game, self._signer.trust) if self._reigns.any() else set()

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have, or had, a champion."""
        return self._reigns.versions(game)

    def history(self, game: GameId, version: str, seat: int | None) -> list[ChampionEntry]:
        """Every signing for that version and seat, oldest first, with its evidence."""
        return self._reigns.history(game, version, seat, self._signer.trust) if self._reigns.any() else []

    def crown(self, card: Card, model: ModelId, evidence: Evidence, seat: int | None, above: int) -> Signed:
        """Make the model champion of its version with the next counter; a game's first one is the next after `above`.

        While it is rolled out, clients outside `rollout_share` keep the champion before it; a rollback
        (`evidence.by` is "rollback") is for everyone at once.
        """
        back = evidence.by == "rollback"

        def next_record(counter: int) -> tuple[Champion, Record]:
            if 1 < counter <= above:
                raise Refused(
                    f"its next counter is {counter}, and clients have seen {above} elsewhere",
                    where=f"champions of {card.game}",
                    do="Copy into a registry that has no champion of this game yet",
                )
            now = self._present(card.game, card.version, seat)
            previous = None if now is None or back else now.champion.model
            if now is not None and now.champion.model == model:
                previous = now.champion.previous  # promoted again: the same roll-out, with today's share
            issued = self._now_ms()
            champion = Champion(
                game=card.game,
                version=card.version,
                seat=seat,
                model=model,
                spec=card.spec,
                counter=counter if counter > 1 else above + 1,
                issued_at_ms=issued,
                expires_at_ms=issued + self._life_ms,
                previous=previous,
                rollout_share=1.0 if back else self._rollout_share,
            )
            return champion, Record("rollback" if back else "promotion", self._sign(champion), evidence)

        return self._appended(card.game, next_record).record.signed

    def _present(self, game: GameId, version: str, seat: int | None) -> ChampionEntry | None:
        try:
            return self._reigns.newest(game, version, seat, self._signer.trust)
        except ModelDamaged as error:  # a promotion is the way out of it
            log.warning("the record before this promotion is damaged: %s", error)
            return None

    def _renewed(self, old: ChampionEntry) -> ChampionEntry:
        said = old.champion

        def next_record(counter: int) -> tuple[Champion, Record] | ChampionEntry:
            newest = self._reigns.newest(said.game, said.version, said.seat, self._signer.trust) or old
            if self._life_left(newest) >= 0.5:
                return newest  # another process was first
            now = self._now_ms()
            champion = msgspec.structs.replace(
                newest.champion, counter=counter, issued_at_ms=now, expires_at_ms=now + self._life_ms
            )
            return champion, Record("renewal", self._sign(champion), newest.record.evidence)

        try:
            return self._appended(said.game, next_record)
        except (StoreFailed, Unreachable, Missing) as error:
            if self._life_left(old) <= 0:
                raise
            log.warning("the champion is not signed anew, it still holds: %s", error)
            return old

    def _appended(self, game: GameId, make: Callable[[int], tuple[Champion, Record] | ChampionEntry]) -> ChampionEntry:
        """Append what `make` makes for the next counter, however many others append meanwhile."""
        for _ in range(TRIES):
            with self._reigns.writing(game) as counter:
                made = make(counter)
                if isinstance(made, ChampionEntry):
                    return made
                try:
                    self._reigns.append(*made)
                except Overtaken:
                    continue
                return ChampionEntry(*made)
        raise StoreFailed(
            f"{TRIES} times another writer was first", where=f"champions of {game}", do="See who promotes so often"
        )

    def _sign(self, champion: Champion) -> Signed:
        return sign(champion, self._signer.private())

    def _life_left(self, reign: ChampionEntry) -> float:
        life_ms = max(1, reign.champion.expires_at_ms - reign.champion.issued_at_ms)
        return (reign.champion.expires_at_ms - self._now_ms()) / life_ms

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
