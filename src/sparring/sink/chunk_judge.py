"""Which records of a stream may be stored, by the rules that a gateway applies to uploads. No I/O.

A stream is also written to by game servers without a gateway, so every chunk is checked here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sparring.errors import ChunkRefused, Refused, SparringError
from sparring.games.chunk_rules import ChunkRules
from sparring.games.spec import GameSpec
from sparring.stream.protocol import Placed
from sparring.wire.chunk import Chunk, Header, decode
from sparring.wire.ids import is_pseudonym

MAX_TEXT = 200  # characters of anything that a sender chose


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record is quarantined, and what is known of it. `header` is None where nothing could be read."""

    # wire: it does not decode, chunk: it breaks its spec; or the store's own: conflict, forbidden, gone, and refused
    # where it took nothing of it, whatever state it was in
    verdict: str
    reason: str
    field: str = ""
    header: Header | None = None


class ChunkJudge:
    """Applies the rules of one deployment to records. Knows nothing of streams or stores."""

    def __init__(self, specs: Iterable[GameSpec], keep_days: float = 0.0) -> None:
        self._rules = ChunkRules(specs, keep_days)

    def __call__(self, placed: Placed) -> Chunk | Refusal:
        """The chunk as it may be stored, or why not."""
        header = None
        try:
            chunk = decode(placed.data)
            header = chunk.header
            self._rules.spec(header)
            if header.player is not None and not is_pseudonym(header.player):
                do = "Send 32 hex digits that only you can trace back, or go through the gateway, which makes them"
                # The value may be a person's name, so the refusal does not repeat it.
                raise ChunkRefused("it is no pseudonym", where="chunk, player", do=do, field="player")
            return self._rules.accepted(
                chunk, player=header.player, uploader=placed.uploader, received_at_ms=placed.arrived_ms
            )
        except SparringError as error:
            verdict, field = (error.code, error.field) if isinstance(error, Refused) else ("wire", "")
            return Refusal(verdict, str(error)[: 3 * MAX_TEXT], field, header)
