"""When a process that died is started again, and when it is given up. Knows no clock and no process."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class RestartPolicy:
    """Exponential back-off, a limit of restarts, and the detection of crash loops. One for each process."""

    restarts: int = -1  # that are allowed; -1: any number
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0
    young_s: float = 2.0  # a process that worked for less than this died young, and the next wait is longer
    loop_deaths: int = 5  # so many young deaths within loop_s are a crash loop; 0: it is never given up
    loop_s: float = 60.0
    failures: int = 0  # young deaths in a row
    deaths: int = 0
    young: deque[float] = field(default_factory=deque)  # when the last young deaths were

    def died(self, now_s: float, up_s: float | None, *, killed: bool = False) -> float | None:
        """Seconds to wait before the next start; None: give up. `up_s`: since when it worked, None where it never did.
        A process that others killed at work is no crash loop, however often they do."""
        self.deaths += 1
        is_young = up_s is None or now_s - up_s < self.young_s
        self.failures = self.failures + 1 if is_young else 1
        if up_s is None or (is_young and not killed):
            self.young.append(now_s)
        while len(self.young) > self.loop_deaths:
            self.young.popleft()
        is_loop = len(self.young) == self.loop_deaths > 0 and now_s - self.young[0] < self.loop_s
        if is_loop or 0 <= self.restarts < self.deaths:
            return None
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(self.failures - 1, 30))
