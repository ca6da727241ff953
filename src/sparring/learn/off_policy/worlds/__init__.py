"""Games learned from their records, in which a model can be tried without anybody playing (Paduraru 2013, §4)."""

from sparring.games.spec import GameSpec
from sparring.learn.off_policy.records import Records
from sparring.learn.off_policy.worlds.boards import board_world
from sparring.learn.off_policy.worlds.numbers import number_world
from sparring.learn.off_policy.worlds.protocol import World, WorldConfig


def world_of(records: Records, game: GameSpec, seed: int, config: WorldConfig | None = None) -> World | None:
    """The game as the records show it, of numbers or of boards; None where it is neither, or too few are recorded."""
    settings = config or WorldConfig()
    return number_world(records, game, seed, settings) or board_world(records, game, seed, settings)
