"""API keys: made, listed, revoked, and recognised, in `<data>/keys.json`; and the audit log of administrators.

Only the SHA-256 of each 256-bit secret is kept, so the file admits no one. A running gateway looks
at the file's time at most once a second, so a revocation holds within that.
"""

import fcntl
import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sparring.durable import replace_file
from sparring.errors import ConfigError, Missing

FILE = "keys.json"
SCOPES = ("record", "act", "read", "node", "admin")
LOOK_EVERY_S = 1.0
_PREFIX = "spar"
_NOBODY = hashlib.sha256(b"").hexdigest()


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    sha256: str
    created_at_ms: int
    revoked_at_ms: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int = 1
    keys: tuple[ApiKey, ...] = ()


class ApiKeys:
    """The keys of one data folder. `find` is for the gateway, the other verbs for `spar keys`."""

    def __init__(self, data: Path) -> None:
        self.path = data / FILE
        self._seen: tuple[int, int, int] | None = None
        self._looked_s = -LOOK_EVERY_S
        self._by_id: dict[str, ApiKey] = {}
        self.reload()

    def create(self, name: str, scopes: tuple[str, ...], now_ms: int) -> tuple[ApiKey, str]:
        """A new key, and the text that its owner sends; that text is shown once and kept nowhere."""
        if not scopes or (unknown := [scope for scope in scopes if scope not in SCOPES]):
            wrong = f"there is no scope {unknown[0]!r}" if scopes else "a key needs a scope"
            raise ConfigError(wrong, where="--scopes", do=f"Choose from {', '.join(SCOPES)}")
        if not name or len(name) > 100 or not name.isprintable():
            raise ConfigError(f"name {name[:40]!r}", where="spar keys create", do="Give 1 to 100 printable characters")
        secret = secrets.token_urlsafe(32)
        with self._writing() as held:
            identity = secrets.token_hex(6)
            key = ApiKey(id=identity, name=name, scopes=scopes, sha256=_digest(secret), created_at_ms=now_ms)
            self._write((*held, key))
        return key, f"{_PREFIX}_{key.id}_{secret}"

    def revoke(self, identity: str, now_ms: int) -> ApiKey:
        """End a key, by its id or its name where only one has it."""
        with self._writing() as held:
            found = [key for key in held if identity in (key.id, key.name) and key.revoked_at_ms is None]
            if len(found) != 1:
                wrong = (
                    f"{len(found)} keys are called {identity!r}" if found else f"no valid key is called {identity!r}"
                )
                raise Missing(wrong, where=str(self.path), do="`spar keys list` shows ids")
            ended = msgspec.structs.replace(found[0], revoked_at_ms=now_ms)
            self._write(tuple(ended if key.id == ended.id else key for key in held))
        return ended

    def all(self) -> list[ApiKey]:
        """Every key that was ever made here, revoked ones too."""
        self.reload()
        return list(self._by_id.values())

    def any(self, now_s: float) -> bool:
        """Whether a key was ever made here; from then on every caller needs one."""
        self._look(now_s)
        return bool(self._by_id)

    def find(self, text: str, now_s: float) -> ApiKey | None:
        """The valid key that `text` is the secret of. Takes as long for a wrong id as for a wrong secret."""
        self._look(now_s)
        prefix, _, rest = text.partition("_")
        identity, _, secret = rest.partition("_")
        key = self._by_id.get(identity)
        same = hmac.compare_digest(_digest(secret), key.sha256 if key else _NOBODY)
        return key if same and key is not None and prefix == _PREFIX and key.revoked_at_ms is None else None

    def valid(self, identity: str) -> bool:
        """Whether the key of that id still holds."""
        key = self._by_id.get(identity)
        return key is not None and key.revoked_at_ms is None

    def reload(self) -> None:
        """Read the file again if it is another one than before."""
        try:
            about = self.path.stat()
        except FileNotFoundError:
            self._seen, self._by_id = None, {}
            return
        mark = (about.st_ino, about.st_mtime_ns, about.st_size)
        if mark != self._seen:
            self._by_id = {key.id: key for key in self._read()}
            self._seen = mark

    def _look(self, now_s: float) -> None:
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self.reload()

    def _read(self) -> tuple[ApiKey, ...]:
        try:
            file = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return ()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            wrong = f"it does not read: {error}"
            raise ConfigError(wrong, where=str(self.path), do="Restore it from a backup") from None
        if file.format != 1:
            raise ConfigError(f"its format is {file.format}", where=str(self.path), do="Upgrade Sparring")
        return file.keys

    @contextmanager
    def _writing(self) -> Iterator[tuple[ApiKey, ...]]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (self.path.parent / ".keys.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._read()
        self.reload()

    def _write(self, keys: tuple[ApiKey, ...]) -> None:
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(_File(1, keys)), indent=2), 0o600)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Audit:
    """What administrators did, one JSON object per line in `<data>/audit.jsonl`: who, what, when; no secret, no name.

    Each line is on disk before the action is answered.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def write(self, action: str, by: str, at_ms: int, **about: Any) -> None:
        """One line."""
        line = msgspec.json.encode({"at_ms": at_ms, "action": action, "by": by, **about}) + b"\n"
        with self._lock:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
