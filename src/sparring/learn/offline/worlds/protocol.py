"""What a learned game is to whoever judges models by it."""

from dataclasses import dataclass
from typing import Protocol

from numpy.random import Generator

from sparring.games.spec import GameSpec
from sparring.learn.offline.records import RecordedEpisodes
from sparring.nets.forward import Forward
from sparring.wire.chunk import Array


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """How long and how wide the fits are."""

    learners: int = 3
    updates: int = 4000  # of each learner of numbers
    batch_steps: int = 256
    learning_rate: float = 2e-3
    hidden_units: tuple[int, ...] = (64, 64)
    board_updates: int = 2000  # of each learner of boards, for what happens first, second … at most
    board_batch_steps: int = 128
    board_units: int = 32


class World(Protocol):
    """A game as its records show it, learned by several learners, each of which left out a share of the episodes."""

    @property
    def trusted(self) -> bool:
        """Whether models are to be ranked by it: it foretells the episodes that its learners left out."""
        ...

    @property
    def note(self) -> str:
        """How well it does, in a few words."""
        ...

    def played(
        self, records: RecordedEpisodes, forward: Forward, game: GameSpec, discount: float, rng: Generator
    ) -> Array:
        """Discounted returns [learners, games] of the model at its best, from views with which recorded games began."""
        ...
