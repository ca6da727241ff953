"""Games learned from their records, in which a model can be tried without anybody playing (Paduraru 2013, §4)."""

from sparring.games.spec import GameSpec
from sparring.learn.offline.records import RecordedEpisodes
from sparring.learn.offline.worlds.board_world import board_world
from sparring.learn.offline.worlds.number_world import number_world
from sparring.learn.offline.worlds.protocol import World, WorldConfig


def world_of(records: RecordedEpisodes, game: GameSpec, seed: int, config: WorldConfig | None = None) -> World | None:
    """The game as the records show it, of numbers or of boards; None where it is neither, or too few are recorded."""
    settings = config or WorldConfig()
    return number_world(records, game, seed, settings) or board_world(records, game, seed, settings)
