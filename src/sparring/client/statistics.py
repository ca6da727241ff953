"""What a connection has done so far, in numbers that a game can show."""

import logging
import threading
from dataclasses import dataclass, replace

from sparring.wire.ids import ModelId

log = logging.getLogger("sparring.client")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts since `connect`. A chunk is spooled, then acknowledged, refused, dropped or damaged; or it waits."""

    episodes: int = 0  # opened
    episodes_not_asked: int = 0  # opened, but outside the sample rate, so not recorded
    steps: int = 0  # made into chunks and spooled
    chunks: int = 0  # spooled
    new_chunks: int = 0  # acknowledged; the gateway took them
    had_chunks: int = 0  # acknowledged; the gateway had them already
    refused_chunks: int = 0  # set aside with the reason: by the gateway, or before they were spooled
    damaged_chunks: int = 0  # did not verify when read back; set aside, not sent
    erased_chunks: int = 0  # removed unsent, since the player, or another of the episode, was erased
    dropped_chunks: int = 0  # removed unsent: the spool was full
    dropped_episodes: int = 0  # that lost chunks or steps this way
    dropped_steps: int = 0  # never spooled: memory was full, or their episode was dropped
    tries: int = 0  # uploads sent
    failed_tries: int = 0  # uploads to be sent again
    act_fallbacks: int = 0  # act="server" got no answer, and a random action was taken
    waiting_chunks: int = 0  # in the spool now
    waiting_bytes: int = 0
    memory_bytes: int = 0  # of steps not yet spooled
    sample_rate: float = 1.0
    model: ModelId | None = None  # of new episodes of the first seat
    last_problem: str = ""  # the last thing that went wrong, as it was logged

    @property
    def acknowledged_chunks(self) -> int:
        return self.new_chunks + self.had_chunks


class Counters:
    """Statistics that several threads add to. Never touched by record()."""

    def __init__(self) -> None:
        self._lock, self._now = threading.Lock(), Statistics()
        self._warned: set[str] = set()

    def add(self, **counts: int) -> None:
        with self._lock:
            self._now = replace(self._now, **{name: getattr(self._now, name) + count for name, count in counts.items()})

    def note_problem(self, text: str) -> None:
        """Remember the last thing that went wrong."""
        with self._lock:
            self._now = replace(self._now, last_problem=text)

    def warn(self, text: str) -> None:
        """Log what went wrong, and remember it."""
        self.note_problem(text)
        log.warning("%s", text)

    def warn_once(self, text: str) -> None:
        """The same, but logged only the first time: a game may ask sixty times a second."""
        self.note_problem(text)
        if text not in self._warned:
            if len(self._warned) > 256:
                self._warned.clear()
            self._warned.add(text)
            log.warning("%s", text)

    def read(self) -> Statistics:
        return self._now
