"""A reader of a topic, wherever its values lie: the newest one (async), or one that is waited for (sync)."""

import time
from abc import ABC, abstractmethod
from typing import Any, Self

from sparring.errors import Unreachable

WAIT_S = 0.25  # of one wait for a version: then it is looked again who publishes


class TopicReader(ABC):
    """For one thread. It holds the newest value that it has seen. `wait_s` > 0 makes `take` wait (sync)."""

    def __init__(self, topic: str, wait_s: float) -> None:
        self.topic, self._wait_s = topic, wait_s
        self.version, self.value = -1, None

    def take(self, version: int = 0) -> Any:
        """What to work with when `version` is wanted: that or a later one (sync), or what there is (async)."""
        return self.at_least(version, self._wait_s) if self._wait_s > 0 else self.newest()

    def newest(self, timeout_s: float = 0.0) -> Any:
        """The newest value there is now (async); waits only where none was ever seen, at most so long."""
        self._look(0.0 if self.version >= 0 else timeout_s)
        return self.value

    def at_least(self, version: int, timeout_s: float) -> Any:
        """The value once its version is `version` or later (sync); Unreachable after the timeout."""
        until = time.monotonic() + timeout_s
        while self.version < version:
            left = until - time.monotonic()
            if left <= 0:
                raise Unreachable(
                    f"version {version} did not come, {self.version} is the newest",
                    where=f"topic {self.topic}",
                    do="See whether its publisher lives: `spar services list`",
                )
            self._look(min(left, WAIT_S))
        return self.value

    @abstractmethod
    def close(self) -> None:
        """Listen no more; the value stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _look(self, timeout_s: float) -> None:
        """Take the newest version if there is a newer one, or if it comes in time."""
