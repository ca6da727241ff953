"""The secrets of a deployment, the same for all of its gateways: one random secret and the API keys.

    identity.key       64 hex digits, from which pseudonyms and player tokens are derived
    keys/<id>.json     one API key: only the SHA-256 of its 256-bit secret, so the file admits no one

They lie in the data folder, or where gateway.identity_url says: a folder that all gateways see, or an S3 bucket. The
environment variable SPARRING_IDENTITY_KEY takes the place of identity.key.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import threading
import time
from pathlib import Path

import msgspec

from sparring.config import Config, open_data_folder
from sparring.errors import ChunkRefused, ConfigError, Missing, SparringError
from sparring.registry import open_objects
from sparring.registry.file import Folder
from sparring.registry.protocol import Objects
from sparring.wire.ids import GameId, PlayerId

log = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 1_024
TOKEN_PREFIX = "spat_"
MAX_TOKEN_CHARACTERS = 1_024
SCOPES = ("record", "act", "read:game", "read", "node", "admin")
LOOK_EVERY_S = 1.0
ROOT, KEYS = "identity.key", "keys/"
VARIABLE = "SPARRING_IDENTITY_KEY"
MAX_BYTES = 1 << 16  # of one of these objects
_PREFIX = "spar"
_NOBODY = hashlib.sha256(b"").hexdigest()


def open_identity(config: Config) -> Objects:
    """Where this deployment has its secrets."""
    open_data_folder(Path(config.data))
    return open_objects(config.identity_url, "gateway.identity_url", mode=0o600)


class Secrets:
    """One random secret, from which one per purpose and game is derived.

    Losing it makes every player a new one; so it belongs in the backup, and in no log.
    """

    def __init__(self, objects: Objects) -> None:
        self._root = _read_or_make(objects)

    @property
    def fingerprint(self) -> str:
        """By which a store knows whose pseudonyms it holds."""
        return self.derive("fingerprint").hex()[:16]

    def pseudonym(self, game: str, name: str) -> PlayerId:
        """32 hex digits that stand for the game's own name of a person. The name itself is kept nowhere."""
        if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
            wrong, do = f"a name of {len(name)} characters", "Send the game's own name for the person, or leave it out"
            raise ChunkRefused(wrong, where="player", do=do, field="player", limit=MAX_NAME_CHARACTERS)
        key = self.derive(f"pseudonym/{game}")
        return PlayerId(hmac.new(key, name.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32])

    def derive(self, purpose: str) -> bytes:
        """A 256-bit secret for that purpose alone."""
        return hmac.new(self._root, purpose.encode(), hashlib.sha256).digest()


def _read_or_make(objects: Objects) -> bytes:
    text, where, do = os.environ.get(VARIABLE), VARIABLE, "Set it to 64 hex digits, the same for all gateways"
    if text is None:
        where, do = f"{objects}/{ROOT}", "Restore it from a backup"
        found = objects.get(ROOT, MAX_BYTES)
        if found is None:
            objects.put_new(ROOT, secrets.token_hex(32).encode())  # another process may have been first
            found = objects.get(ROOT, MAX_BYTES) or b""
        text = found.decode("ascii", "replace")
    root = b""
    with contextlib.suppress(ValueError):
        root = bytes.fromhex(text.strip())
    if len(root) != 32:
        raise ConfigError("it does not hold 64 hex digits", where=where, do=do)
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


_read_claims = msgspec.json.Decoder(TokenClaims).decode


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
        claim = _read_claims(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError):
        return None
    return claim if claim.expires_at_ms > now_ms else None


def _mac(said: str, secret: bytes) -> bytes:
    return hmac.new(secret, said.encode(), hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    sha256: str
    created_at_ms: int
    revoked_at_ms: int | None = None


_read_key = msgspec.json.Decoder(ApiKey).decode


class ApiKeys:
    """The API keys of a deployment. `find` and `valid` are for the gateway, the other verbs for `spar keys`.

    Each key is an object of its own, written whole: creating and revoking need no lock, on whichever machine.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._by_id: dict[str, ApiKey] = {}
        self._seen: dict[str, str] = {}  # object → the etag that was read
        self._looked_s = -LOOK_EVERY_S
        self._followed = False
        self.reload()

    def create(self, name: str, scopes: tuple[str, ...], now_ms: int) -> tuple[ApiKey, str]:
        """A new key, and the text that its owner sends; that text is shown once and kept nowhere."""
        if not scopes or (unknown := [scope for scope in scopes if scope not in SCOPES]):
            wrong = f"there is no scope {unknown[0]!r}" if scopes else "a key needs a scope"
            raise ConfigError(wrong, where="--scopes", do=f"Choose from {', '.join(SCOPES)}")
        if not name or len(name) > 100 or not name.isprintable():
            raise ConfigError(f"name {name[:40]!r}", where="spar keys create", do="Give 1 to 100 printable characters")
        secret = secrets.token_urlsafe(32)
        identity = secrets.token_hex(6)
        key = ApiKey(id=identity, name=name, scopes=scopes, sha256=_digest(secret), created_at_ms=now_ms)
        self._objects.put_new(_place(key.id), msgspec.json.encode(key))
        self.reload()
        return key, f"{_PREFIX}_{key.id}_{secret}"

    def revoke(self, identity: str, now_ms: int) -> ApiKey:
        """End a key, by its id or its name where only one has it."""
        found = [key for key in self.all() if identity in (key.id, key.name) and key.revoked_at_ms is None]
        if len(found) != 1:
            wrong = f"{len(found)} keys are called {identity!r}" if found else f"no valid key is called {identity!r}"
            raise Missing(wrong, where=str(self._objects), do="`spar keys list` shows ids")
        ended = msgspec.structs.replace(found[0], revoked_at_ms=now_ms)
        self._objects.put(_place(ended.id), msgspec.json.encode(ended))
        self.reload()
        return ended

    def all(self) -> list[ApiKey]:
        """Every key that was ever made here, revoked ones too."""
        self.reload()
        return sorted(self._by_id.values(), key=lambda key: key.created_at_ms)

    def any(self) -> bool:
        """Whether there is a key, valid or revoked."""
        return bool(self._by_id)

    def find(self, text: str) -> ApiKey | None:
        """The valid key that `text` is the secret of. Takes as long for a wrong id as for a wrong secret."""
        prefix, _, rest = text.partition("_")
        identity, _, secret = rest.partition("_")
        key = self._by_id.get(identity)
        same = hmac.compare_digest(_digest(secret), key.sha256 if key else _NOBODY)
        return key if same and key is not None and prefix == _PREFIX and key.revoked_at_ms is None else None

    def valid(self, identity: str) -> bool:
        """Whether the key of that id still holds."""
        key = self._by_id.get(identity)
        return key is not None and key.revoked_at_ms is None

    def look(self) -> None:
        """Read again what changed, at most once a second. No request waits for a bucket: a thread reads that."""
        if isinstance(self._objects, Folder):
            if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = time.monotonic()
                self._reload_or_warn()
        elif not self._followed:
            self._followed = True
            threading.Thread(target=self._follow, name="api-keys", daemon=True).start()

    def _follow(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            self._reload_or_warn()

    def _reload_or_warn(self) -> None:
        try:
            self.reload()
        except SparringError as error:
            log.warning("the API keys were not all read again: %s", error)

    def reload(self) -> None:
        """Read what changed since the last time. A key that was removed or does not read holds no more."""
        there = {one.key: one.etag for one in self._objects.list(KEYS)}
        known, wrong = {key: self._by_id.get(_id(key)) for key in there}, ""
        for key, etag in there.items():
            if self._seen.get(key) != etag:
                try:
                    known[key] = _read_key(self._objects.get(key, MAX_BYTES) or b"")
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    known[key], wrong = None, f"{key} does not read: {error}"
        self._by_id = {one.id: one for one in known.values() if one is not None}
        self._seen = there
        if wrong:
            raise ConfigError(wrong, where=str(self._objects), do="Remove it, or restore it from a backup")


def _place(identity: str) -> str:
    return f"{KEYS}{identity}.json"


def _id(key: str) -> str:
    return key.removeprefix(KEYS).removesuffix(".json")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
