"""Player tokens: short-lived, bound to one game and one player, signed with the server's secret.

    spat_<base64url of the claim's JSON>.<base64url of its HMAC-SHA-256>

There is one algorithm and no field that names it. Decides without I/O; the clock is an argument.
"""

import base64
import binascii
import hashlib
import hmac

import msgspec

from sparring.wire.ids import GameId, PlayerId

PREFIX = "spat_"
MAX_CHARACTERS = 1_024


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a token says. It dies with the key that asked for it."""

    game: GameId
    player: PlayerId
    expires_at_ms: int
    key: str


def sign(claim: Claim, secret: bytes) -> str:
    """The token's text."""
    said = _text(msgspec.json.encode(claim))
    return f"{PREFIX}{said}.{_text(_mac(said, secret))}"


def verify(token: str, secret: bytes, now_ms: int) -> Claim | None:
    """The claim, if the token is ours and has not expired; None otherwise, without saying why."""
    if not token.startswith(PREFIX) or len(token) > MAX_CHARACTERS or not token.isascii():
        return None
    said, _, mac = token.removeprefix(PREFIX).partition(".")
    if not hmac.compare_digest(_text(_mac(said, secret)), mac):
        return None
    try:
        claim = msgspec.json.decode(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)), type=Claim)
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError):
        return None
    return claim if claim.expires_at_ms > now_ms else None


def _mac(said: str, secret: bytes) -> bytes:
    return hmac.new(secret, said.encode(), hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
