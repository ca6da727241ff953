"""Where an episode's rows are: partition (game, day, bucket), from its id alone. No I/O.

`day` is the day that the UUIDv7 says, in UTC; `bucket` a hash of the id, modulo the number of buckets that holds from
that day on. That number may change for days to come, never for one whose ids exist, so a retry always finds its row.
"""

import bisect
import struct
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from cassandra.metadata import Murmur3Token

from sparring.store.rows import COLUMNS, Row
from sparring.wire.ids import EpisodeId, GameId, opened_at_ms

DAY_MS = 86_400_000
BUCKETS = 64  # at 100 MB each: 6.4 GB of chunks per game and day


class Partition(NamedTuple):
    """A partition of `chunks`."""

    game: GameId
    day: int  # since 1970-01-01
    bucket: int


class Stored(NamedTuple):
    """A row of `chunks`; header and body where they were asked for."""

    partition: Partition
    row: Row
    arrived: int  # microseconds by the writer's clock, rising: the order of receipt
    header: bytes | None = None
    body: bytes | None = None


SELECT_ROWS = f"SELECT {COLUMNS}, arrived FROM chunks WHERE game = ? AND day = ? AND bucket = ?"
SELECT_CHUNKS = SELECT_ROWS.replace("arrived FROM", "arrived, header, body FROM")


def stored(partition: Partition, found: tuple[Any, ...]) -> Stored:
    """A row that one of the SELECT statements above has found."""
    columns = len(Row._fields)
    return Stored(partition, Row(*found[:columns]), *found[columns:])


class BucketLayout:
    """How many buckets a day has."""

    def __init__(self, rows: Iterable[tuple[int, int]]) -> None:
        """`rows` are (first day, buckets from then on)."""
        self.rows = sorted(rows)
        self._days = [day for day, _ in self.rows]

    def buckets(self, day: int) -> int:
        at = bisect.bisect_right(self._days, day) - 1
        return self.rows[max(at, 0)][1]

    def partition(self, game: GameId, episode: EpisodeId) -> Partition:
        day = opened_at_ms(episode) // DAY_MS
        return Partition(game, day, zlib.crc32(episode.encode()) % self.buckets(day))


def in_part(partition: Partition, part: int, of: int) -> bool:
    """Whether a partition's token is in the `part`-th of `of` equal ranges of all tokens."""
    return of == 1 or (token(partition) + (1 << 63)) * of >> 64 == part


def token(partition: Partition) -> int:
    """The token by which Cassandra places the partition."""
    packed = (partition.game.encode(), struct.pack(">i", partition.day), struct.pack(">i", partition.bucket))
    key = b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in packed)
    found: int = Murmur3Token.hash_fn(key)
    return found
