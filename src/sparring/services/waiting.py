"""Who waits for what in a service, and whether a verb is quick enough to be done without handing it over."""

from dataclasses import dataclass, field
from typing import Any

from sparring.services.register import Verb

QUICK_S = 0.0005  # a verb that took no longer in each of its last calls is done without handing over
QUICK_CALLS = 4


@dataclass(slots=True)
class Asked:
    """One caller's request."""

    caller: bytes  # b"": nobody waits for an answer
    id: int
    until: float  # when nobody waits for it any more
    args: Any
    named: Any


@dataclass(slots=True)
class Line:
    """Those who wait for one verb."""

    verb: Verb
    method: Any
    alone: bool  # it answers one caller at a time
    waiting: int = 0  # queued, not yet begun; changed by two threads, with their lock
    gathered: list[Asked] = field(default_factory=list)  # the first thread's
    due: float = 0.0  # when what is gathered must be worked on
    quick: int = 0  # calls in a row that were
    at_once: bool = False  # it is quick, and serves one caller at a time

    @property
    def all_waiting(self) -> int:
        """Queued or gathered."""
        return self.waiting + len(self.gathered)

    def took(self, seconds: float) -> None:
        self.quick = self.quick + 1 if seconds < QUICK_S else 0
        self.at_once = self.alone and self.quick >= QUICK_CALLS
