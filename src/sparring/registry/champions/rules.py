"""Who becomes champion: promotion, rollback, and re-signing before a manifest expires. The same on every backend."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from sparring.errors import Missing, ModelDamaged, Refused, StoreFailed, Unreachable
from sparring.registry.cards import place
from sparring.registry.champions.log import ChampionEntry, ChampionLog, CounterTaken, Kind
from sparring.registry.protocol import Evidence
from sparring.registry.signing_key import SigningKey
from sparring.wire.champion import Champion, Signed, sign
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Model

DAY_S = 86_400.0
TRIES = 1_000  # each lost try means that another writer appended an entry

log = logging.getLogger(__name__)


def rollback_target(history: Sequence[ChampionEntry]) -> ModelId | None:
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


class ChampionRules(ABC):
    """The part of a registry that decides about champions. `clock` gives Unix seconds."""

    def __init__(
        self,
        champion_log: ChampionLog,
        key: SigningKey,
        *,
        champion_days: float,
        rollout_share: float,
        clock: Callable[[], float],
    ) -> None:
        self._log, self._key, self._clock = champion_log, key, clock
        self._life_ms, self._rollout_share = int(champion_days * DAY_S * 1000), rollout_share

    @abstractmethod
    def fetch(self, model: ModelId) -> Model:
        """Those exact bytes, verified; Missing or ModelDamaged otherwise."""

    @abstractmethod
    def save_evidence(self, model: ModelId, evidence: Evidence) -> None:
        """Store the result of an evaluation of the model."""

    @property
    def trust(self) -> str:
        """The public name of the key that signs champions: what `connect(trust=…)` takes. Made on first need."""
        return self._key.trust

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have, or had, a champion."""
        return self._log.versions(game)

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

    def promote(
        self, game: GameId, model: ModelId, evidence: Evidence, seat: int | None = None, *, above: int = 0
    ) -> Signed:
        """Make the model champion of its version with the next counter; a game's first one is the next after `above`.

        During a roll-out, clients outside `rollout_share` keep the previous champion; a rollback
        (`evidence.by` is "rollback") reaches all clients at once.
        """
        card = self.fetch(model).card
        if card.game != game:
            raise Refused(f"it plays {card.game}", where=place(model), do=f"Promote a model of {game}", field="game")
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
