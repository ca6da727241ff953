"""Which instance a call goes to: the one that its key stays with, or else one with the fewest calls under way."""

import random
import threading
from collections import OrderedDict
from collections.abc import Sequence

from sparring.services.discovery import Discovery, Instance

FRESH_S = 0.05  # what was found is used for so long without another look
STICKY_KEYS = 100_000  # the longest unused are forgotten


class Target:
    """An instance, and what is known of it here."""

    __slots__ = ("calls", "gone", "instance")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        # Under way from here: from the choice on, so that calls that begin together are spread. A list that threads
        # lengthen and shorten by one needs no lock, and its length is the number.
        self.calls: list[None] = []
        self.gone = False


class Router:
    """Threads may share one. `gone` of a target is set when it is found no more."""

    def __init__(self, discovery: Discovery, rng: random.Random) -> None:
        self._discovery = discovery
        self._turn = rng.randrange(1 << 16)
        self._found: dict[str, tuple[float, tuple[Target, ...]]] = {}  # service → until when it is fresh, who
        self._targets: dict[tuple[str, str, str], Target] = {}  # by service, id and address
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()  # (service, key) → instance
        self._lock = threading.Lock()

    def choose(self, service: str, key: str | None, refused: Sequence[str], now: float) -> Target | None:
        """Where a call goes now; None where nobody is there, apart from the `refused`. It counts until `done`."""
        found = self._found.get(service)
        there = found[1] if found is not None and now < found[0] else self._look(service, now)
        if refused:
            there = tuple(one for one in there if one.instance.id not in refused)
        if not there:
            return None
        if key is None and len(there) == 1:
            chosen = there[0]
            chosen.calls.append(None)
        else:
            with self._lock:
                chosen = self._choose(service, key, there)
                chosen.calls.append(None)
        return chosen

    def done(self, target: Target) -> None:
        """A call that was sent there is over, however it ended."""
        target.calls.pop()

    def look_again(self, service: str) -> None:
        """Something there is not as it was found."""
        self._found.pop(service, None)

    def _choose(self, service: str, key: str | None, there: Sequence[Target]) -> Target:
        if key is not None:
            kept = self._kept.get((service, key))
            for one in there:
                if one.instance.id == kept:
                    self._kept.move_to_end((service, key))
                    return one
        calls = [len(one.calls) for one in there]
        least = min(calls)
        equals = [one for one, many in zip(there, calls, strict=True) if many == least]
        self._turn += 1
        chosen = equals[self._turn % len(equals)]
        if key is not None:
            self._kept[service, key] = chosen.instance.id
            if len(self._kept) > STICKY_KEYS:
                self._kept.popitem(last=False)
        return chosen

    def _look(self, service: str, now: float) -> tuple[Target, ...]:
        live = [one for one in self._discovery.instances(service) if self._discovery.alive(one)]
        with self._lock:
            there = []
            for one in live:
                place = (service, one.id, one.address)
                target = self._targets.get(place)
                if target is None:
                    target = self._targets[place] = Target(one)
                there.append(target)
            for place, target in list(self._targets.items()):
                if place[0] == service and target not in there:
                    target.gone = True
                    del self._targets[place]
            if there:
                self._found[service] = (now + FRESH_S, tuple(there))
            else:
                self._found.pop(service, None)
        return tuple(there)
