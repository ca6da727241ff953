"""What every registry says of champions, and how it makes one, wherever its models are kept."""

from abc import ABC, abstractmethod

from sparring.errors import Refused
from sparring.registry.cards import place
from sparring.registry.champions.log import ChampionEntry
from sparring.registry.champions.rules import ChampionRules, Signer
from sparring.registry.protocol import Evidence
from sparring.wire.champion import Signed
from sparring.wire.ids import GameId, ModelId
from sparring.wire.model import Model


class ChampionPromotion(ABC):
    """A registry's half that has champions; the other keeps models."""

    _signer: Signer
    _succession: ChampionRules

    @property
    def trust(self) -> str:
        """The name of the key that signs here: what `connect(trust=…)` takes. A folder makes it on first need."""
        return self._signer.trust

    def champion(self, game: GameId, version: str, seat: int | None = None) -> Signed | None:
        """The signed manifest for that version and seat, signed anew near its expiry; None where none reigns."""
        return self._succession.champion(game, version, seat)

    def versions(self, game: GameId) -> list[str]:
        """The game's versions that have a champion."""
        return self._succession.versions(game)

    def history(self, game: GameId, version: str, seat: int | None = None) -> list[ChampionEntry]:
        """Every signing for that version and seat, oldest first, with its evidence."""
        return self._succession.history(game, version, seat)

    def promote(
        self, game: GameId, model: ModelId, evidence: Evidence, seat: int | None = None, *, above: int = 0
    ) -> Signed:
        """Make the model champion of its version with the next counter. Going back is a promotion too."""
        card = self.fetch(model).card
        if card.game != game:
            raise Refused(f"it plays {card.game}", where=place(model), do=f"Promote a model of {game}", field="game")
        self._signer.private()  # before anything is written
        self.judge(model, evidence)
        return self._succession.crown(card, model, evidence, seat, above)

    @abstractmethod
    def fetch(self, model: ModelId) -> Model:
        """Those exact bytes, verified; Missing or ModelDamaged otherwise. Never another instead."""

    @abstractmethod
    def judge(self, model: ModelId, evidence: Evidence) -> None:
        """Keep what an evaluation said of the model, promoted or not; lists show the newest."""
