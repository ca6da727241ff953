"""Where accepted chunks go: straight into the store, or into a stream on their way there."""

import logging
import math
import time
from collections.abc import Sequence
from typing import Protocol

from sparring.errors import SparringError, StoreFailed
from sparring.store.protocol import Appended, Store
from sparring.store.records import erased_verdict
from sparring.stream.protocol import Stream
from sparring.wire.chunk import Chunk
from sparring.wire.ids import EpisodeId, GameId, PlayerId

log = logging.getLogger(__name__)

ASKED_AGAIN_S = 10.0  # whether a player was erased meanwhile; the sink asks once more before it writes
REMEMBERED = 65_536  # players

Who = tuple[GameId, PlayerId]


class Intake(Protocol):
    """What the gateway's writer appends to. A store is one."""

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """Durable on return; a verdict for each."""


class StreamIntake:
    """Appends to a stream what is not of a player whom the store has forgotten. Appended to by one thread."""

    def __init__(self, stream: Stream, store: Store) -> None:
        self._stream, self._store = stream, store
        self._known: dict[Who, tuple[bool, float]] = {}  # erased or not, and until when that holds
        self._silent_until_s = -math.inf  # a store that does not answer is not asked for every player

    def append(self, chunks: Sequence[Chunk]) -> Appended:
        """ "taken" or "gone" for each. A stream that does not take them is a StoreFailed: no sender is at fault."""
        erased = [self._gone(chunk) for chunk in chunks]
        late = {_origin(chunk): chunk for chunk, gone in zip(chunks, erased, strict=True) if gone}
        if late:
            self._erase_late(list(late.values()))
        gone = [_origin(chunk) in late for chunk in chunks]  # a bot's seat shows the player's moves
        try:
            taken = iter(self._stream.append([chunk for chunk, absent in zip(chunks, gone, strict=True) if not absent]))
        except StoreFailed:
            raise
        except SparringError as error:
            raise StoreFailed(error.wrong, where=error.where, do=error.do) from error
        return [
            erased_verdict(of_player=player) if absent else next(taken)
            for absent, player in zip(gone, erased, strict=True)
        ]

    def erased(self, game: GameId, player: PlayerId) -> None:
        """That player was erased just now: nothing more of them is taken. Called from any thread."""
        self._known[game, player] = (True, math.inf)

    def _erase_late(self, chunks: list[Chunk]) -> None:
        """The store refuses them, and the other seats of their episodes, which may come by the stream."""
        try:
            self._store.append(chunks)
        except SparringError as error:
            log.warning("other seats of an erased player's episodes may be kept: %s", error)

    def _gone(self, chunk: Chunk) -> bool:
        if chunk.header.player is None:
            return False
        who, now_s = (chunk.header.game, chunk.header.player), time.monotonic()
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
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[who] = (erased, now_s + ASKED_AGAIN_S)
        return erased


def _origin(chunk: Chunk) -> tuple[EpisodeId, str]:
    return chunk.header.episode, chunk.header.uploader
