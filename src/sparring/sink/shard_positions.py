"""How far shards were read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparring.stream.protocol import BEGINNING, Position, Shard
from sparring.stream.shard_order import readable as readable_shards


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """How far one shard was read. `ended`: nothing will ever come after it."""

    position: Position = BEGINNING
    ended: bool = False


def readable(shards: Sequence[Shard], positions: Mapping[str, ShardPosition]) -> list[Shard]:
    """The shards to be read now: parents to their end before their children."""
    return readable_shards(shards, {name for name, place in positions.items() if place.ended})


def remembered(shards: Sequence[Shard], positions: Mapping[str, ShardPosition]) -> dict[str, ShardPosition]:
    """The positions worth keeping: of shards that the stream still has."""
    still = {shard.id for shard in shards}
    return {name: place for name, place in positions.items() if name in still}
