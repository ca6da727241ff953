"""Who calls: an API key, a player token, or an anonymous caller on this machine while there was no key yet.

The keys are read at most once a second, so a revocation holds within that. `<data>/audit.jsonl` is the audit log.
"""

import functools
import ipaddress
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sparring.errors import ConfigError, NotYours, StoreFailed
from sparring.gateway.credentials import TOKEN_PREFIX, ApiKeys, Secrets, TokenClaims, sign_token, verify_token
from sparring.gateway.http_errors import BadRequest, TooMany, Unauthorized
from sparring.gateway.rate_limits import Rates
from sparring.registry.protocol import Objects
from sparring.store.protocol import Store
from sparring.wire.ids import GameId, PlayerId

# Scopes that no key has: the first is every caller's; the second a player token's, and that of a caller who may record
# and shows a player's secret name (handlers.py).
PUBLIC, SELF = "public", "self"
READ_GAME = "read:game"  # what a game needs to play: spec, champion, models
PLAYER_SCOPES = frozenset({"record", "act", READ_GAME, SELF})  # of a player token, for its own player and game
WRONG_PER_S, WRONG_AT_ONCE = 1.0, 30.0  # guesses at credentials, per address
IDENTITY, HAD_KEYS = "identity", "had keys"  # facts that the store remembers


class Audit:
    """What administrators did, one JSON object per line in `<data>/audit.jsonl`: who, what, when; no secret, no name.

    Each line is on disk before the action is answered.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, action: str, by: str, at_ms: int, **about: Any) -> None:
        """One line, in one write: lines of several threads and processes do not mix; StoreFailed where it fails."""
        line = msgspec.json.encode({"at_ms": at_ms, "action": action, "by": by, **about}) + b"\n"
        try:
            with open(self._path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            wrong = f"the audit log is not written: {error.strerror}"
            raise StoreFailed(wrong, where=str(self._path), do="Free some space; see who may write there") from None


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller and its scopes. `id` is stored as the uploader of their chunks."""

    id: str
    scopes: frozenset[str]
    game: GameId | None = None  # a player token holds for one game
    player: PlayerId | None = None
    key: str = ""  # by which it was admitted; a token, by which it was asked for
    expires_at_ms: int | None = None  # of a player token

    def may(self, scope: str) -> bool:
        """admin has every scope; read has read:game; record has self, beside a player's secret name."""
        within = {READ_GAME: "read", SELF: "record"}.get(scope)
        return scope == PUBLIC or not self.scopes.isdisjoint({scope, within, "admin"})


ANONYMOUS = Caller("anonymous", frozenset({"record", "act", "read"}))
NO_CALLER = Caller("", frozenset())


def secrets_for(store: Store, objects: Objects) -> Secrets:
    """The secrets there, if the store's pseudonyms are of them. With others every player would be a new one, and
    erasing by name would miss what was stored before: ConfigError."""
    found = Secrets(objects)
    known = store.remember(IDENTITY, found.fingerprint)
    if known != found.fingerprint:
        wrong = f"the store holds pseudonyms of the identity {known}, and this one is {found.fingerprint}"
        do = "Name the identity of the other gateways in gateway.identity_url, or restore identity.key from a backup"
        raise ConfigError(wrong, where=str(objects), do=do)
    return found


class Identity:
    """Recognises callers. `local` says that the socket is bound to loopback. The store remembers that there were keys:
    a deployment that lost them is not open to all."""

    def __init__(self, objects: Objects, store: Store, *, local: bool) -> None:
        self.secrets, self.keys, self._local = secrets_for(store, objects), ApiKeys(objects), local
        self._store, self._had_keys = store, store.fact(HAD_KEYS) is not None
        self._token_secret = self.secrets.derive("player-token")
        self._wrong = Rates(WRONG_PER_S, WRONG_AT_ONCE)
        self.mode()

    def mode(self) -> str:
        """ "anonymous" while every process on this machine is admitted, "keys" from the first key on."""
        self.keys.look()
        if self.keys.any() and not self._had_keys:
            self._had_keys = True
            self._store.remember(HAD_KEYS, "yes")
        return "keys" if self._had_keys or not self._local else "anonymous"

    def caller(self, credential: str, address: str) -> Caller:
        """Who sent that Authorization header; NO_CALLER for none where one is needed; Unauthorized for a wrong one.
        Wrong keys from an address are slowed down; a valid key from the same address never is."""
        if not credential:
            return ANONYMOUS if self.mode() == "anonymous" else NO_CALLER
        scheme, _, text = credential.partition(" ")
        found = self._recognise(text.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            if (wait_s := self._wrong.take(address, time.monotonic())) > 0.0:
                wrong = "too many wrong keys came from there"
                raise TooMany(wrong, where="identity", limit=WRONG_PER_S, retry_s=wait_s)
            raise Unauthorized
        return found

    def holds(self, caller: Caller) -> bool:
        """Whether a caller that was admitted before, and stayed connected, still would be."""
        if caller is ANONYMOUS:
            return self.mode() == "anonymous"
        self.keys.look()
        fresh = caller.expires_at_ms is None or caller.expires_at_ms > time.time() * 1000
        return fresh and self.keys.valid(caller.key)

    def token(self, game: GameId, player: PlayerId, expires_at_ms: int, key: str) -> str:
        """A player's token."""
        claims = TokenClaims(game=game, player=player, expires_at_ms=expires_at_ms, key=key)
        return sign_token(claims, self._token_secret)

    def _recognise(self, text: str) -> Caller | None:
        self.mode()
        if text.startswith(TOKEN_PREFIX):
            claim = verify_token(text, self._token_secret, int(time.time() * 1000))
            if claim is None or not self.keys.valid(claim.key):
                return None
            # Not the pseudonym: it stays in quarantine rows and in seats that an erasure leaves.
            uploader = self.secrets.pseudonym(f"uploader/{claim.game}", claim.player)
            return Caller(f"player:{uploader}", PLAYER_SCOPES, claim.game, claim.player, claim.key, claim.expires_at_ms)
        key = self.keys.find(text)
        return None if key is None else Caller(key.id, frozenset(key.scopes), key=key.id)


def admit(caller: Caller, scope: str, game: str | None) -> None:
    """Return, or raise Unauthorized where there is no caller, and NotYours where it may not do this."""
    if not caller.may(scope):
        if caller is NO_CALLER:
            raise Unauthorized
        wrong = f"this needs the scope {scope!r}"
        do = "Use another key"
        raise NotYours(wrong, where="identity", do=do, field="scope", value=sorted(caller.scopes - {SELF}), limit=scope)
    if game is not None:
        check_game(caller, game)


def check_game(caller: Caller, game: str) -> None:
    """Return, or raise NotYours where a player token is for another game."""
    if caller.game not in (None, game):
        wrong = "the token is for another game"
        raise NotYours(wrong, where="identity", do="Ask for a token of this game", field="game", value=game)


def check_host(caller: Caller, host: str, origin: str | None, *, forwarded: bool = False) -> None:
    """Without a key the browser itself must not be the one who was tricked: Host and Origin are this machine's. Nor may
    a proxy of this machine have forwarded what came from elsewhere.

    A page of another site can reach loopback through a name that it controls (DNS rebinding), or
    post to it blindly; it cannot forge these two headers.
    """
    if caller is not ANONYMOUS:
        return
    if forwarded:
        wrong = "without keys only this machine is served, and a proxy forwarded this"
        raise BadRequest(wrong, where="head", do="Make a key with `spar keys create`", field="x-forwarded-for")
    if not is_loopback(_hostname(host)):
        wrong = "without keys only this machine is served"
        do = "Use http://127.0.0.1 or localhost, or make a key with `spar keys create`"
        raise BadRequest(wrong, where="Host", do=do, field="host", value=host[:200])
    if origin is not None and origin.partition("://")[2] != host:
        wrong = "a page of another site may not do this"
        do = "Open the page from this server"
        raise NotYours(wrong, where="Origin", do=do, field="origin", value=origin[:200], limit=host)


@functools.lru_cache(maxsize=1_024)
def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _hostname(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
