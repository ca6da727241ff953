"""Who waits for what in a service, and whether a verb is quick enough to be done without handing it over."""

from dataclasses import dataclass, field
from typing import Any

from sparring.services.register import Verb

QUICK_S = 0.0005  # a verb that took no longer in each of its last calls is done without handing over
QUICK_CALLS = 4
MUCH_S = 0.02  # no machine's doing any more


@dataclass(slots=True)
class Request:
    """One caller's request."""

    caller: bytes  # b"": nobody waits for an answer
    id: int
    until: float  # when nobody waits for it any more
    args: Any
    named: Any


@dataclass(slots=True)
class RequestQueue:
    """Those who wait for one verb."""

    verb: Verb
    method: Any
    alone: bool  # it answers one caller at a time
    waiting: int = 0  # queued, not yet begun; changed by two threads, with their lock
    gathered: list[Request] = field(default_factory=list)  # the first thread's
    due: float = 0.0  # when what is gathered must be worked on
    quick: int = 0  # calls in a row that were
    at_once: bool = False  # it is quick, and serves one caller at a time
    doubted: bool = False  # its last call was not

    @property
    def all_waiting(self) -> int:
        """Queued or gathered."""
        return self.waiting + len(self.gathered)

    def took(self, seconds: float) -> None:
        """Of its last call. A quick one that was slow once stays quick, as another may have had the core meanwhile: to
        hand over would be dearer, and with many callers there is no end to it soon. Twice in a row, or by much, is its
        own doing."""
        slow = seconds >= QUICK_S
        if not slow:
            self.quick += 1
        elif self.doubted or self.quick < QUICK_CALLS or seconds > MUCH_S:
            self.quick = 0
        self.doubted = slow
        self.at_once = self.alone and self.quick >= QUICK_CALLS
