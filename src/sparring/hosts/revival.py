"""When a dead instance is started again, and when not any more. Knows no clock and no process."""

from collections import deque
from dataclasses import dataclass, field

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 10.0
YOUNG_S = 5.0  # who dies before this age has hardly worked
LOOP_DEATHS, LOOP_S = 5, 60.0  # so many deaths of the young in such a time are a crash loop


@dataclass(slots=True)
class Revival:
    """The lives of one instance."""

    restarts: int = -1  # that are allowed; -1: any number
    failures: int = 0  # in a row
    deaths: int = 0
    young: deque[float] = field(default_factory=lambda: deque(maxlen=LOOP_DEATHS))

    def died(self, now_s: float, started_s: float) -> float | None:
        """How long to wait before the next life; None: there is none."""
        self.deaths += 1
        is_young = now_s - started_s < YOUNG_S
        self.failures = self.failures + 1 if is_young else 1
        if is_young:
            self.young.append(now_s)
        if 0 <= self.restarts < self.deaths or self.loops(now_s):
            return None
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (self.failures - 1))

    def loops(self, now_s: float) -> bool:
        """Whether it keeps dying young."""
        return len(self.young) == LOOP_DEATHS and now_s - self.young[0] < LOOP_S
