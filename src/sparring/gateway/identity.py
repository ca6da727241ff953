"""Who calls: an API key, a player token, or an anonymous caller on this machine while there is no key yet."""

import functools
import ipaddress
import time
from dataclasses import dataclass
from pathlib import Path

from sparring.errors import NotYours
from sparring.gateway.http_errors import BadRequest, TooMany, Unauthorized
from sparring.gateway.keys import ApiKeys
from sparring.gateway.rate_limits import Rates
from sparring.gateway.secrets import TOKEN_PREFIX, Secrets, TokenClaims, sign_token, verify_token
from sparring.wire.ids import GameId, PlayerId

__all__ = ["ANONYMOUS", "Caller", "Identity", "Secrets", "is_loopback"]

PUBLIC, SELF = "public", "self"  # scopes that no key has: the first is every caller's, the second a player token's
WRONG_PER_S, WRONG_AT_ONCE = 1.0, 30.0  # guesses at credentials, per address


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller and its scopes. `id` is stored as the uploader of their chunks."""

    id: str
    scopes: frozenset[str]
    game: GameId | None = None  # a player token holds for one game
    player: PlayerId | None = None

    def may(self, scope: str) -> bool:
        return scope == PUBLIC or scope in self.scopes or ("admin" in self.scopes and scope != SELF)


ANONYMOUS = Caller("anonymous", frozenset({"record", "act", "read"}))
NO_CALLER = Caller("", frozenset())


class Identity:
    """Recognises callers. `local` says that the socket is bound to loopback."""

    def __init__(self, data: Path, *, local: bool) -> None:
        self.secrets, self.keys, self._local = Secrets(data), ApiKeys(data), local
        self._token_secret = self.secrets.derive("player-token")
        self._wrong = Rates(WRONG_PER_S, WRONG_AT_ONCE)

    def mode(self) -> str:
        """ "anonymous" while every process on this machine is admitted, "keys" from the first key on."""
        return "keys" if self.keys.any(time.monotonic()) or not self._local else "anonymous"

    def caller(self, credential: str, address: str) -> Caller:
        """Who sent that Authorization header; NO_CALLER for none where one is needed; Unauthorized for a wrong one."""
        now_s = time.monotonic()
        if not credential:
            anonymous = self._local and not self.keys.any(now_s)
            return ANONYMOUS if anonymous else NO_CALLER
        if (wait_s := self._wrong.wait_s(address, now_s)) > 0.0:
            raise TooMany("too many wrong keys came from there", where="identity", limit=WRONG_PER_S, retry_s=wait_s)
        scheme, _, text = credential.partition(" ")
        found = self._recognise(text.strip(), now_s) if scheme.lower() == "bearer" else None
        if found is None:
            self._wrong.take(address, now_s)
            raise Unauthorized
        return found

    def token(self, game: GameId, player: PlayerId, expires_at_ms: int, key: str) -> str:
        """A player's token."""
        return sign_token(
            TokenClaims(game=game, player=player, expires_at_ms=expires_at_ms, key=key), self._token_secret
        )

    def _recognise(self, text: str, now_s: float) -> Caller | None:
        if text.startswith(TOKEN_PREFIX):
            claim = verify_token(text, self._token_secret, int(time.time() * 1000))
            self.keys.any(now_s)  # looks whether the file has changed
            if claim is None or not self.keys.valid(claim.key):
                return None
            scopes = frozenset({"record", "act", "read", SELF})
            # Not the pseudonym: it stays beside bots' seats that this player's game recorded, after an erasure too.
            uploader = self.secrets.pseudonym(f"uploader/{claim.game}", claim.player)
            return Caller(f"player:{uploader}", scopes, claim.game, claim.player)
        key = self.keys.find(text, now_s)
        return None if key is None else Caller(key.id, frozenset(key.scopes))


def admit(caller: Caller, scope: str, game: str | None) -> None:
    """Return, or raise Unauthorized where there is no caller, and NotYours where it may not do this."""
    if not caller.may(scope):
        if caller is NO_CALLER:
            raise Unauthorized
        wrong = f"this needs the scope {scope!r}"
        do = "Use another key"
        raise NotYours(wrong, where="identity", do=do, field="scope", value=sorted(caller.scopes - {SELF}), limit=scope)
    if caller.game is not None and game is not None and game != caller.game:
        wrong = "the token is for another game"
        raise NotYours(wrong, where="identity", do="Ask for a token of this game", field="game", value=game)


def check_host(caller: Caller, host: str, origin: str | None) -> None:
    """Without a key the browser itself must not be the one who was tricked: Host and Origin are this machine's.

    A page of another site can reach loopback through a name that it controls (DNS rebinding), or
    post to it blindly; it cannot forge these two headers.
    """
    if caller is not ANONYMOUS:
        return
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
