"""What may be stored of what lay in a stream, decided by the very code that a gateway runs. No I/O.

A stream is also written to by game servers that no gateway watched, so every check is made here,
whoever sent the chunk.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from sparring.errors import ChunkRefused, Refused, SparringError
from sparring.games.chunk_checks import check_chunk
from sparring.games.spec import GameSpec
from sparring.stream.protocol import Placed
from sparring.wire.chunk import MAX_ENCODED_BYTES, MAX_HEADER_BYTES, Chunk, Header, decode, encode
from sparring.wire.ids import misdated

MAX_TEXT = 200  # characters of anything that a sender chose
_PSEUDONYM = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was put aside, and what is known of it. `header` is None where nothing could be read."""

    # wire: it does not decode, chunk: it breaks its spec; or the store's own: conflict, forbidden, gone, and refused
    # where it took nothing of it, whatever state it was in
    verdict: str
    reason: str
    field: str = ""
    header: Header | None = None


class ChunkJudge:
    """Knows the games of one deployment, and nothing of streams or stores."""

    def __init__(self, specs: Iterable[GameSpec], keep_days: float = 0.0) -> None:
        """Episodes opened more than `keep_days` before they arrived are refused; 0 takes all."""
        self._keep_ms = int(keep_days * 86_400_000)
        self._specs = {(spec.id, spec.version): spec for spec in specs}

    def __call__(self, placed: Placed) -> Chunk | Refusal:
        """The chunk as it may be stored, or why not. The same answer whenever and wherever it is asked."""
        header = None
        try:
            chunk = decode(placed.data)
            header = chunk.header
            return self._prepared(chunk, placed)
        except SparringError as error:
            field = error.field if isinstance(error, Refused) else ""
            verdict = error.code if isinstance(error, Refused) else "wire"
            return Refusal(verdict, str(error)[: 3 * MAX_TEXT], field, header)

    def _prepared(self, chunk: Chunk, placed: Placed) -> Chunk:
        head = chunk.header
        spec = self._specs.get((head.game, head.version))
        if spec is None:
            raise self._unknown(head)
        if head.player is not None and not _PSEUDONYM.fullmatch(head.player):
            # What stands there may be a person's name: it is repeated nowhere.
            raise ChunkRefused(
                "it is no pseudonym",
                where="chunk, player",
                do="Send 32 hex digits that only you can trace back, or go through the gateway, which makes them",
                field="player",
            )
        said = msgspec.structs.replace(head, uploader=placed.uploader, received_at_ms=placed.arrived_ms)
        ready = Chunk(said, chunk.columns, chunk.body)
        check_chunk(ready, spec)
        if wrong := misdated(said.episode, said.received_at_ms, self._keep_ms):
            raise ChunkRefused(wrong, where="chunk, episode", do="Mend the sender's clock", field="episode")
        # The header has grown by what the stream says: with it the chunk must still be one that reads.
        if len(ready.body) > MAX_ENCODED_BYTES - MAX_HEADER_BYTES and (size := len(encode(ready))) > MAX_ENCODED_BYTES:
            wrong = f"it takes {size} bytes, the limit is {MAX_ENCODED_BYTES}"
            raise ChunkRefused(wrong, where="chunk", do="Send shorter chunks", field="steps")
        return ready

    def _unknown(self, head: Header) -> ChunkRefused:
        versions = [version for game, version in self._specs if game == head.game]
        if versions:
            return ChunkRefused(
                f"version {head.version[:40]!r} is not known here",
                where="chunk, version",
                do=f"Send one of {', '.join(versions)}, or add its spec to `games` in spar.toml",
                field="version",
            )
        return ChunkRefused(
            f"the game {head.game[:80]!r} is not known here",
            where="chunk, game",
            do="Add its spec to `games` in the sink's spar.toml",
            field="game",
        )
