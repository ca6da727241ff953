"""What a game had in each minute: steps, players, returns, lag. No I/O.

A minute is the one in which chunks came in. Players are kept as the store's marks, so that two batches' players can be
counted once and no pseudonym stands anywhere else.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sparring.store.rows import mark
from sparring.wire.chunk import Header
from sparring.wire.ids import GameId

MINUTE_MS = 60_000
MAX_LAG_MS = (1 << 31) - 1  # 24 days: what is older was imported, and no lag


@dataclass(slots=True)
class Tally:
    """Of one game in one minute, as far as one batch knows. `returns` sums over the `ended` seats."""

    steps: int = 0
    chunks: int = 0
    players: set[int] = field(default_factory=set)
    ended: int = 0
    returns: float = 0.0
    lag_ms_sum: int = 0  # from arrival to being stored, over chunks
    lag_ms_max: int = 0

    def merge(self, other: "Tally") -> None:
        self.steps += other.steps
        self.chunks += other.chunks
        self.players |= other.players
        self.ended += other.ended
        self.returns += other.returns
        self.lag_ms_sum += other.lag_ms_sum
        self.lag_ms_max = max(self.lag_ms_max, other.lag_ms_max)


class Minutes:
    """Tallies by game and minute."""

    def __init__(self) -> None:
        self._of: dict[tuple[GameId, int], Tally] = {}

    def add(self, head: Header, stored_ms: int) -> None:
        """Count a chunk that was stored."""
        tally = self._tally(head)
        lag_ms = min(max(0, stored_ms - head.received_at_ms), MAX_LAG_MS)
        tally.steps += head.steps
        tally.chunks += 1
        tally.lag_ms_sum += lag_ms
        tally.lag_ms_max = max(tally.lag_ms_max, lag_ms)
        if head.player is not None:
            tally.players.add(mark(head.game, head.player))

    def end(self, head: Header, earned: float) -> None:
        """Count the end of a seat's episode, which earned that much in all."""
        tally = self._tally(head)
        tally.ended += 1
        tally.returns += earned

    def merge(self, items: Iterable[tuple[GameId, int, Tally]]) -> None:
        """Count what another part of the same batch counted."""
        for game, minute_ms, tally in items:
            self._of.setdefault((game, minute_ms), Tally()).merge(tally)

    def __iter__(self) -> Iterator[tuple[GameId, int, Tally]]:
        return iter([(game, minute_ms, tally) for (game, minute_ms), tally in sorted(self._of.items())])

    def _tally(self, head: Header) -> Tally:
        minute_ms = head.received_at_ms // MINUTE_MS * MINUTE_MS
        return self._of.setdefault((head.game, minute_ms), Tally())
