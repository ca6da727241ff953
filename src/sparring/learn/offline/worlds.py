"""World models: a game's dynamics learned from its records, in which a model can play without players or simulator.

This is model-based off-policy evaluation (Paduraru 2013, §4). There are two kinds of world, chosen by what a seat sees:
vectors of numbers (`vector_world.py`), and boards on which straight lines of cells matter, such as Connect Four's
(`line_board_world.py`). `World` is all that the evaluation knows of either.
"""

from dataclasses import dataclass
from typing import Protocol

from numpy.random import Generator

from sparring.games.spec import GameSpec
from sparring.learn.offline.records import RecordedEpisodes
from sparring.nets.forward import Forward
from sparring.wire.chunk import Array


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """How many models of the dynamics are fitted, how long, and how wide they are."""

    folds: int = 3
    updates: int = 4000  # of each vector model
    batch_steps: int = 256
    learning_rate: float = 2e-3
    hidden_units: tuple[int, ...] = (64, 64)
    board_updates: int = 2000  # of each network of a board model, at most
    board_batch_steps: int = 128
    board_units: int = 32


class World(Protocol):
    """An ensemble of dynamics models, each of which was fitted without one fold of the episodes."""

    @property
    def trusted(self) -> bool:
        """Whether models should be ranked by it: it predicts the episodes that were left out of the fits."""
        ...

    @property
    def note(self) -> str:
        """How well it predicts them, in a few words."""
        ...

    def returns(
        self, records: RecordedEpisodes, forward: Forward, game: GameSpec, discount: float, rng: Generator
    ) -> Array:
        """Discounted returns [folds, games] of the greedy policy, from first observations of recorded games."""
        ...


def world_of(records: RecordedEpisodes, game: GameSpec, seed: int, config: WorldConfig | None = None) -> World | None:
    """A world fitted to the records; None where the game is of neither kind, or too few episodes are recorded."""
    from sparring.learn.offline.line_board_world import line_board_world
    from sparring.learn.offline.vector_world import vector_world

    settings = config or WorldConfig()
    if records.episodes < 2 * settings.folds:
        return None
    return vector_world(records, game, seed, settings) or line_board_world(records, game, seed, settings)
