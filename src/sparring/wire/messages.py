"""The messages on `WS /v1/games/{game}/play`: a tagged union each way, with a version.

Text frames carry JSON, binary frames msgpack; the answer comes in the kind that was asked in.
Observations are flat lists by leaf name; the game's spec gives shape and dtype.
"""

from typing import Any

import msgspec

from sparring.errors import WireError
from sparring.wire.ids import EpisodeId, ModelId

PROTOCOL = 1
MAX_MESSAGE_BYTES = 1 << 20

Observation = dict[str, list[Any] | float | int | bytes]  # bytes (msgpack only): the raw little-endian buffer


class Hello(msgspec.Struct, frozen=True, tag="hello", forbid_unknown_fields=True):
    """First on every connection, from both sides."""

    protocol: int
    version: str = ""  # the game's version, on the way in


class Start(msgspec.Struct, frozen=True, tag="start", forbid_unknown_fields=True):
    """Opens an episode; many may be open on one socket."""

    episode: EpisodeId
    seat: int = 0
    player: str | None = None
    strength: float | None = None
    record: bool = True
    seed: int | None = None
    style: str | msgspec.UnsetType | None = msgspec.UNSET  # of the strengths that the game sells


class Observe(msgspec.Struct, frozen=True, tag="observe", forbid_unknown_fields=True):
    """What the seat sees now, and what it earned since its last decision."""

    episode: EpisodeId
    seat: int
    observation: Observation
    tick: int
    reward: float = 0.0
    legal: list[bool] | None = None
    search_ms: float | msgspec.UnsetType = msgspec.UNSET  # look ahead for so long before answering


class End(msgspec.Struct, frozen=True, tag="end", forbid_unknown_fields=True):
    """The seat's episode is over; `reward` is what its last decision earned."""

    episode: EpisodeId
    seat: int
    final_observation: Observation
    reward: float = 0.0
    terminated: bool = True
    outcome: float | None = None


class Action(msgspec.Struct, frozen=True, tag="action", forbid_unknown_fields=True):
    """The answer to Observe."""

    episode: EpisodeId
    seat: int
    action: Any
    model: ModelId | None
    logp: float | None = None


class Ended(msgspec.Struct, frozen=True, tag="ended", forbid_unknown_fields=True):
    """The answer to End: what was kept of it ("new", "had", "taken"), empty where nothing was recorded."""

    episode: EpisodeId
    seat: int
    kept: str = ""


class Problem(msgspec.Struct, frozen=True, tag="problem", forbid_unknown_fields=True):
    """What was wrong with one message; the connection stays open unless the protocol itself was broken."""

    code: str
    message: str
    field: str = ""
    episode: EpisodeId | None = None


FromGame = Hello | Start | Observe | End
FromGateway = Hello | Action | Ended | Problem

_json: msgspec.json.Decoder[FromGame] = msgspec.json.Decoder(FromGame)
_msgpack: msgspec.msgpack.Decoder[FromGame] = msgspec.msgpack.Decoder(FromGame)


def decode(frame: str | bytes) -> FromGame:
    """A message from a game, or a WireError."""
    if len(frame) > MAX_MESSAGE_BYTES:
        wrong = f"{len(frame)} bytes, the limit is {MAX_MESSAGE_BYTES}"
        raise WireError(wrong, where="message", do="Send less at once")
    try:
        return _json.decode(frame) if isinstance(frame, str) else _msgpack.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"it does not read: {error}", where="message", do="See docs/wire.md") from None


def encode(message: FromGame | FromGateway, *, text: bool) -> str | bytes:
    """The frame for `message`."""
    return msgspec.json.encode(message).decode() if text else msgspec.msgpack.encode(message)
