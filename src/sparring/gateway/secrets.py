"""The data folder's own secret, and what is made with it: players' pseudonyms and player tokens."""

import base64
import binascii
import contextlib
import hashlib
import hmac
import secrets
from pathlib import Path

import msgspec

from sparring.config import open_data_folder
from sparring.durable import create_file
from sparring.errors import ConfigError
from sparring.wire.ids import GameId, PlayerId

FILE = "identity.key"
MAX_NAME_CHARACTERS = 1_024
TOKEN_PREFIX = "spat_"
MAX_TOKEN_CHARACTERS = 1_024


class Secrets:
    """One random secret in `<data>/identity.key` (0600), from which one per purpose and game is derived.

    Losing the file makes every player a new one; so it belongs in the backup, and in no log.
    """

    def __init__(self, data: Path) -> None:
        self._root = _read_or_make(data / FILE)
        self._games: dict[str, bytes] = {}

    def pseudonym(self, game: str, name: str) -> PlayerId:
        """32 hex digits that stand for the game's own name of a person. The name itself is kept nowhere."""
        key = self._games.get(game)
        if key is None:
            if len(self._games) > 1_024:
                self._games.clear()
            key = self._games[game] = self.derive(f"pseudonym/{game}")
        return PlayerId(hmac.new(key, name.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32])

    def derive(self, purpose: str) -> bytes:
        """A 256-bit secret for that purpose alone."""
        return hmac.new(self._root, purpose.encode(), hashlib.sha256).digest()


def pseudonym(data: Path, game: GameId, name: str) -> PlayerId:
    """The same pseudonym that a gateway on this data folder gives."""
    return Secrets(data).pseudonym(game, name)


def _read_or_make(path: Path) -> bytes:
    open_data_folder(path.parent)
    if not path.exists():
        with contextlib.suppress(FileExistsError):  # another process made it first
            create_file(path, secrets.token_hex(32).encode(), 0o600)
    try:
        root = bytes.fromhex(path.read_text().strip())
    except ValueError:
        root = b""
    if len(root) != 32:
        raise ConfigError("it does not hold 64 hex digits", where=str(path), do="Restore it from a backup")
    return root


class TokenClaims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a player token says: short-lived, for one game and one player. It ends with the API key that asked for it.

        spat_<base64url of these claims as JSON>.<base64url of their HMAC-SHA-256>

    There is one algorithm and no field that names it.
    """

    game: GameId
    player: PlayerId
    expires_at_ms: int
    key: str


def sign_token(claim: TokenClaims, secret: bytes) -> str:
    """The token's text."""
    said = _text(msgspec.json.encode(claim))
    return f"{TOKEN_PREFIX}{said}.{_text(_mac(said, secret))}"


def verify_token(token: str, secret: bytes, now_ms: int) -> TokenClaims | None:
    """The claim, if the token is ours and has not expired; None otherwise, without saying why."""
    if not token.startswith(TOKEN_PREFIX) or len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
        return None
    said, _, mac = token.removeprefix(TOKEN_PREFIX).partition(".")
    if not hmac.compare_digest(_text(_mac(said, secret)), mac):
        return None
    try:
        claim = msgspec.json.decode(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)), type=TokenClaims)
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError):
        return None
    return claim if claim.expires_at_ms > now_ms else None


def _mac(said: str, secret: bytes) -> bytes:
    return hmac.new(secret, said.encode(), hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
