"""Which chunks one deployment accepts: the gateway asks this of uploads, the sink of records in a stream. No I/O."""

from collections.abc import Iterable

import msgspec

from sparring.errors import ChunkRefused
from sparring.games.chunk_checks import check_chunk
from sparring.games.spec import GameSpec
from sparring.wire.chunk import MAX_ENCODED_BYTES, MAX_HEADER_BYTES, Chunk, Header, decode, encode
from sparring.wire.ids import PlayerId, misdated


class ChunkRules:
    """The specs of the games that are served, and how long episodes are kept."""

    def __init__(self, specs: Iterable[GameSpec], keep_days: float = 0.0) -> None:
        """Episodes opened more than `keep_days` before they arrived are refused; 0 accepts all."""
        self._keep_days = keep_days
        self._specs = {(spec.id, spec.version): spec for spec in specs}

    def spec(self, head: Header) -> GameSpec:
        """The spec that a chunk with this header must follow; ChunkRefused where it is not served here."""
        spec = self._specs.get((head.game, head.version))
        if spec is not None:
            return spec
        versions = [version for game, version in self._specs if game == head.game]
        field, value = ("version", head.version[:40]) if versions else ("game", head.game[:80])
        known = f"Send one of {', '.join(versions)}, or add" if versions else "Add"
        wrong = f"{'version' if versions else 'the game'} {value!r} is not known here"
        do = f"{known} its spec to `games` in spar.toml"
        raise ChunkRefused(wrong, where=f"chunk, {field}", do=do, field=field, value=value, limit=versions or None)

    def accepted(self, chunk: Chunk, *, player: PlayerId | None, uploader: str, received_at_ms: int) -> Chunk:
        """The chunk as it is stored, with what the receiver sets in its header; ChunkRefused with the reason otherwise.

        The same chunk, receiver and time always give the same answer.
        """
        spec = self.spec(chunk.header)
        header = msgspec.structs.replace(chunk.header, player=player, uploader=uploader, received_at_ms=received_at_ms)
        ready = Chunk(header, chunk.columns, chunk.body)
        check_chunk(ready, spec)
        # An episode's time decides where it is stored and for how long, so it must be plausible.
        if wrong := misdated(header.episode, received_at_ms, int(self._keep_days * 86_400_000)):
            do = "Set the sender's clock (by `time_ms` of the gateway's answer), and open a new episode"
            limit = f"a day ahead, or {self._keep_days:g} days old" if self._keep_days else "a day ahead"
            raise ChunkRefused(wrong, where="chunk, episode", do=do, field="episode", value=header.episode, limit=limit)
        return _readable(ready)


def _readable(chunk: Chunk) -> Chunk:
    """The chunk, if it can be read back: one that came as JSON is not encoded yet, and the header has grown."""
    if chunk.body and len(chunk.body) <= MAX_ENCODED_BYTES - MAX_HEADER_BYTES:
        return chunk
    encoded = encode(chunk)
    if len(encoded) > MAX_ENCODED_BYTES:
        wrong = f"it takes {len(encoded)} bytes, the limit is {MAX_ENCODED_BYTES}"
        do = "Send shorter chunks"
        limit = f"{MAX_ENCODED_BYTES} bytes"
        raise ChunkRefused(wrong, where="chunk", do=do, field="steps", value=chunk.header.steps, limit=limit)
    return chunk if chunk.body else decode(encoded)
