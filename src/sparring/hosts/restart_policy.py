"""When a dead instance is started again, and when not any more. Knows no clock and no process."""

from collections import deque
from dataclasses import dataclass, field

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 10.0
YOUNG_S = 2.0  # who could be called for less than this has hardly worked
LOOP_DEATHS, LOOP_S = 5, 60.0  # so many deaths of the young in such a time are a crash loop


@dataclass(slots=True)
class RestartPolicy:
    """The lives of one instance."""

    restarts: int = -1  # that are allowed; -1: any number
    failures: int = 0  # in a row
    deaths: int = 0
    young: deque[float] = field(default_factory=lambda: deque(maxlen=LOOP_DEATHS))

    def died(self, now_s: float, up_s: float | None, *, killed: bool = False) -> float | None:
        """How long to wait before the next life; None: there is none. `up_s`: since when it could be called, None
        where it never could. One that others killed at work is no crash loop, however often they do."""
        self.deaths += 1
        is_young = up_s is None or now_s - up_s < YOUNG_S
        self.failures = self.failures + 1 if is_young else 1
        if up_s is None or (is_young and not killed):
            self.young.append(now_s)
        if 0 <= self.restarts < self.deaths or self.loops(now_s):
            return None
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (self.failures - 1))

    def loops(self, now_s: float) -> bool:
        """Whether it keeps dying young."""
        return len(self.young) == LOOP_DEATHS and now_s - self.young[0] < LOOP_S
