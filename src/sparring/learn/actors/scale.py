"""How many actors there are to be, as others say while a run goes on (`spar services scale actor=6`).

Processes that share memory are no services, and only the learner's thread may start and end them. So whoever asks is
answered by a host of one service, and waits until the learner has looked.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any

from sparring.errors import Missing, Refused
from sparring.learn.plan import Plan
from sparring.services.errors import CallTimeout

SERVICE = "actor"
MOST = 1000
MET_S = 50.0  # the learner may be judging itself


class ActorScaling:
    """`asked` is the learner's thread's; `runs` and `scale` are called by others."""

    def __init__(self, plan: Plan) -> None:
        self.actors = plan.actors  # now
        self._plan = plan
        self._wanted = plan.actors
        self._changed = Condition()
        self._open: list[Any] = []

    def open(self) -> None:
        """Let others find it, where calls between processes are installed."""
        if importlib.util.find_spec("zmq") is not None:
            from sparring.hosts.control import HostControl, private_folder

            folder = private_folder(self._plan.discovery)
            self._open = [folder, HostControl(self, folder.path, self._plan.discovery)]

    @contextmanager
    def asked(self) -> Iterator[int | None]:
        """How many there are to be, where that is news; there are so many when this ends."""
        with self._changed:
            wanted = self._wanted
        if wanted == self.actors:
            yield None
            return
        self.actors = wanted
        yield wanted
        with self._changed:
            self._changed.notify_all()

    def runs(self) -> list[dict[str, Any]]:
        """As of a host."""
        return [{"name": SERVICE, "count": self.actors, "generations": [0] * self.actors}]

    def scale(self, name: str, count: int) -> range:
        """As of a host."""
        if name != SERVICE:
            raise Missing(f"no service {name!r} was started", where="spar train", do=f"It runs {SERVICE}")
        if not 1 <= count <= MOST:
            raise Refused(f"{count} instances", where=f"service {SERVICE}", do=f"Ask for 1 to {MOST}")
        with self._changed:
            self._wanted = count
            if not self._changed.wait_for(lambda: self.actors == count, MET_S):
                raise CallTimeout(
                    "the learner has not looked yet", where="spar train", do="It will be done when it does"
                )
        return range(count)

    def close(self) -> None:
        """Nobody is answered any more."""
        while self._open:
            self._open.pop().close()
