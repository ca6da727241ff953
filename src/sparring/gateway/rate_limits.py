"""How often and how much: token buckets per caller, steps per player and day. No I/O; the clock is an argument."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class Rates:
    """A token bucket for each caller: `per_s` on average, `burst` at once."""

    def __init__(self, per_s: float, burst: float, callers: int = 65_536) -> None:
        """At most `callers` are remembered; the one that was quiet longest is forgotten first."""
        self.per_s, self.burst, self._most = per_s, burst, callers
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def take(self, caller: Hashable, now_s: float, tokens: float = 1.0) -> float:
        """0 when the caller may go on, else the seconds until it may."""
        bucket = self._fill(caller, now_s)
        if bucket.tokens >= tokens:
            bucket.tokens -= tokens
            return 0.0
        return (tokens - bucket.tokens) / self.per_s

    def wait_s(self, caller: Hashable, now_s: float) -> float:
        """What `take` would say, without taking anything."""
        bucket = self._buckets.get(caller)
        if bucket is None:
            return 0.0
        held = min(self.burst, bucket.tokens + (now_s - bucket.at_s) * self.per_s)
        return max(0.0, (1.0 - held) / self.per_s)

    def _fill(self, caller: Hashable, now_s: float) -> _Bucket:
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= self._most:
                self._buckets.popitem(last=False)
            bucket = self._buckets[caller] = _Bucket(self.burst, now_s)
            return bucket
        self._buckets.move_to_end(caller)
        bucket.tokens = min(self.burst, bucket.tokens + max(0.0, now_s - bucket.at_s) * self.per_s)
        bucket.at_s = now_s
        return bucket


class Quotas:
    """Steps kept of each player since midnight UTC. Counted in memory: a restart begins anew."""

    def __init__(self, steps_per_day: int, players: int = 1_000_000) -> None:
        self.steps_per_day, self._most = steps_per_day, players
        self._day = 0
        self._used: dict[Hashable, int] = {}

    def take(self, player: Hashable, steps: int, now_s: float) -> float:
        """0 and the steps are counted, or the seconds until the day ends and nothing is."""
        day = int(now_s // DAY_S)
        if day != self._day or len(self._used) > self._most:
            self._day = day
            self._used.clear()
        used = self._used.get(player, 0)
        if used + steps > self.steps_per_day:
            return (day + 1) * DAY_S - now_s
        self._used[player] = used + steps
        return 0.0

    def give_back(self, player: Hashable, steps: int) -> None:
        """Steps that were counted and then not kept."""
        if player in self._used:
            self._used[player] = max(0, self._used[player] - steps)
