"""How often and how much: requests per caller, steps per player and day, and the share of episodes asked for.

No I/O; the clock is an argument.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

DAY_S = 86_400.0
LOWEST_RATE = 1e-4  # a sender cannot claim a lower rate for its steps: it could starve the others


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
    """Steps kept of each player since midnight UTC. Counted in memory: a restart begins at 0."""

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


class SampleRate:
    """The share of episodes to ask for, so that all players together stay at the budget.

    A step of an episode opened under rate r stands for 1/r steps that were played. Their sum over a sliding window is
    what is played in all, whatever rates were in force meanwhile; the budget's share of that is the rate for the next
    episodes. So nothing oscillates while old episodes run out.
    """

    def __init__(self, budget_steps_per_s: float, window_s: float) -> None:
        self.budget_steps_per_s, self.window_s = budget_steps_per_s, window_s
        self._sum = 0.0  # of steps / rate, each weighted by exp(-age / window)
        self._at_s: float | None = None
        self._begun_s = 0.0

    def kept(self, steps: int, sample_rate: float, now_s: float) -> None:
        """That many steps, of an episode opened under that rate, were kept just now."""
        self._age(now_s)
        self._sum += steps / min(1.0, max(sample_rate, LOWEST_RATE))

    def played_steps_per_s(self, now_s: float) -> float:
        """What all players play, as far as what they were asked for shows it."""
        if self._at_s is None:
            return 0.0
        self._age(now_s)
        # Right after the start the window is not yet full: an average over the time that there was.
        filled = self.window_s * -math.expm1(-max(now_s - self._begun_s, 1.0) / self.window_s)
        return self._sum / filled

    def rate(self, now_s: float) -> float:
        """The share to ask for from now on: 1 while the budget suffices, never 0."""
        played = self.played_steps_per_s(now_s)
        return 1.0 if played <= self.budget_steps_per_s else max(LOWEST_RATE, self.budget_steps_per_s / played)

    def _age(self, now_s: float) -> None:
        if self._at_s is None:
            self._at_s = self._begun_s = now_s
        if now_s > self._at_s:
            self._sum *= math.exp((self._at_s - now_s) / self.window_s)
            self._at_s = now_s
