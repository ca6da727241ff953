"""Where accepted chunks go: straight into the store, or into a stream on their way there."""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from sparring.errors import SparringError, StoreFailed
from sparring.store.protocol import Appended, AppendResult, Store
from sparring.stream.protocol import Stream
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId, PlayerId

log = logging.getLogger(__name__)

ASKED_AGAIN_S = 10.0  # whether a player was erased meanwhile; the sink asks once more before it writes
REMEMBERED = 65_536  # players

Who = tuple[GameId, PlayerId]


class Intake(Protocol):
    """What the gateway's writer appends to. A store is one."""

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """Durable on return; a verdict for each."""
        ...


class StreamIntake:
    """Appends to a stream what is not of a player whom the store has forgotten. Appended to by one thread."""

    def __init__(self, stream: Stream, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._store, self._clock = stream, store, clock
        self._lock = threading.Lock()
        self._known: OrderedDict[Who, tuple[bool, float]] = OrderedDict()  # erased or not, and until when that holds
        self._silent_until_s = -math.inf  # a store that does not answer is not asked for every player

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """ "taken" or "gone" for each. A stream that does not take them is a StoreFailed: no sender is at fault."""
        gone = [self._gone(chunk) for chunk in chunks]
        try:
            taken = iter(self._stream.append([chunk for chunk, absent in zip(chunks, gone, strict=True) if not absent]))
        except StoreFailed:
            raise
        except SparringError as error:
            raise StoreFailed(error.wrong, where=error.where, do=error.do) from error
        return [AppendResult("gone", "the player was erased", "player") if absent else next(taken) for absent in gone]

    def erased(self, game: GameId, player: PlayerId) -> None:
        """That player was erased just now: nothing more of them is taken. Called from any thread."""
        self._note((game, player), erased=True, until_s=math.inf)

    def _gone(self, chunk: Chunk) -> bool:
        if chunk.header.player is None:
            return False
        who, now_s = (chunk.header.game, chunk.header.player), self._clock()
        with self._lock:
            erased, until_s = self._known.get(who, (False, now_s))
        if erased or now_s < until_s or now_s < self._silent_until_s:
            return erased
        try:
            erased = self._store.erased(*who)
        except SparringError as error:
            # The stream is there so that players need not wait for the store; the sink asks it again.
            log.warning("players are taken without asking whether they were erased: %s", error)
            self._silent_until_s = now_s + ASKED_AGAIN_S
            return False
        self._note(who, erased=erased, until_s=now_s + ASKED_AGAIN_S)
        return erased

    def _note(self, who: Who, *, erased: bool, until_s: float) -> None:
        with self._lock:
            known = self._known.pop(who, (False, 0.0))[0]  # what was erased meanwhile stays so
            self._known[who] = (erased or known, until_s)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
