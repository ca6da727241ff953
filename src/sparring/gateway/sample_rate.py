"""How large a share of episodes is asked for, so that all players together stay at the budget.

A step that came from an episode opened under rate r stands for 1/r steps that were played. Their sum
over a sliding window is what is played in all, whatever rates were in force meanwhile; the budget's
share of that is the rate for the next episodes. So nothing oscillates while old episodes run out.
No I/O; the clock is an argument.
"""

import math

LOWEST = 1e-4  # below it a sender's own word for its rate counts no further: it could starve the others


class SampleRate:
    """Steps that came in, and the rate that follows from them."""

    def __init__(self, budget_steps_per_s: float, window_s: float) -> None:
        self.budget_steps_per_s, self.window_s = budget_steps_per_s, window_s
        self._sum = 0.0  # of steps / rate, each weighted by exp(-age / window)
        self._at_s: float | None = None
        self._begun_s = 0.0

    def kept(self, steps: int, sample_rate: float, now_s: float) -> None:
        """That many steps, of an episode opened under that rate, were kept just now."""
        self._age(now_s)
        self._sum += steps / min(1.0, max(sample_rate, LOWEST))

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
        return 1.0 if played <= self.budget_steps_per_s else max(LOWEST, self.budget_steps_per_s / played)

    def _age(self, now_s: float) -> None:
        if self._at_s is None:
            self._at_s = self._begun_s = now_s
        if now_s > self._at_s:
            self._sum *= math.exp((self._at_s - now_s) / self.window_s)
            self._at_s = now_s
