"""How often and how much: requests per caller, steps and bytes per account and day, the share of episodes asked for.

No I/O; the clock is an argument.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable

DAY_S = 86_400.0
LOWEST_RATE = 1e-4
GIVEN_S = 1_800.0  # a rate that was given may be claimed for so long after, and at most twice as long


class Rates:
    """A token bucket for each caller: `per_s` on average, `burst` at once."""

    def __init__(self, per_s: float, burst: float, callers: int = 65_536) -> None:
        """At most `callers` are remembered; the one that was quiet longest is forgotten first."""
        self.per_s, self.burst, self._most = per_s, burst, callers
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def take(self, caller: Hashable, now_s: float, cost: float = 1.0) -> float:
        """0 when the caller may go on, else the seconds until it may."""
        tokens = self._tokens(caller, now_s)
        self._buckets[caller] = (tokens - cost if tokens >= cost else tokens, now_s)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return max(0.0, (cost - tokens) / self.per_s)

    def _tokens(self, caller: Hashable, now_s: float) -> float:
        tokens, at_s = self._buckets.get(caller, (self.burst, now_s))
        return min(self.burst, tokens + max(0.0, now_s - at_s) * self.per_s)


class Quotas:
    """Steps and bytes kept of each account since midnight UTC. Counted in memory: a restart begins at 0."""

    def __init__(self, steps_per_day: int, bytes_per_day: int, accounts: int = 200_000) -> None:
        """At most `accounts` are remembered, some 100 MB; the one that was quiet longest is forgotten first."""
        self.steps_per_day, self.bytes_per_day, self._most = steps_per_day, bytes_per_day, accounts
        self._day = 0
        self._used: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()

    def take(self, account: Hashable, steps: int, size: int, now_s: float) -> float:
        """0 and both are counted, or the seconds until the day ends and neither is."""
        day = int(now_s // DAY_S)
        if day != self._day:
            self._day = day
            self._used.clear()
        used_steps, used_bytes = self._used.get(account, (0, 0))
        if used_steps + steps > self.steps_per_day or used_bytes + size > self.bytes_per_day:
            return (day + 1) * DAY_S - now_s
        self._used[account] = used_steps + steps, used_bytes + size
        self._used.move_to_end(account)
        if len(self._used) > self._most:
            self._used.popitem(last=False)
        return 0.0

    def give_back(self, account: Hashable, steps: int, size: int) -> None:
        """What was counted and then not kept."""
        used_steps, used_bytes = self._used.get(account, (0, 0))
        if used_steps or used_bytes:
            self._used[account] = max(0, used_steps - steps), max(0, used_bytes - size)


class SampleRate:
    """The share of episodes to ask for, so that all players together stay at the budget.

    A step of an episode opened under rate r stands for 1/r steps that were played. Their sum over a sliding window is
    what is played in all, whatever rates were in force meanwhile; the budget's share of that is the rate for the next
    episodes. So nothing oscillates while old episodes run out. A sender that claims a lower rate than any that was
    given to anyone lies, and its steps count as if under the lowest one given.
    """

    def __init__(self, budget_steps_per_s: float, window_s: float) -> None:
        self.budget_steps_per_s, self.window_s = budget_steps_per_s, window_s
        self._sum = 0.0  # of steps / rate, each weighted by exp(-age / window)
        self._at_s: float | None = None
        self._begun_s = 0.0
        self._period, self._lowest = 0, (1.0, 1.0)  # rates given: the lowest in the period before and in this one

    def kept(self, steps: int, sample_rate: float, now_s: float) -> None:
        """That many steps, of an episode whose sender says that it was opened under that rate, were kept just now."""
        self._age(now_s)
        self._sum += steps / min(1.0, max(sample_rate, min(self._lowest)))

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
        rate = 1.0 if played <= self.budget_steps_per_s else max(LOWEST_RATE, self.budget_steps_per_s / played)
        period = int(now_s // GIVEN_S)
        if period != self._period:
            self._period, self._lowest = period, (self._lowest[1] if period == self._period + 1 else 1.0, 1.0)
        self._lowest = self._lowest[0], min(self._lowest[1], rate)
        return rate

    def _age(self, now_s: float) -> None:
        if self._at_s is None:
            self._at_s = self._begun_s = now_s
        if now_s > self._at_s:
            self._sum *= math.exp((self._at_s - now_s) / self.window_s)
            self._at_s = now_s
