"""The key that signs champions: made once, readable by its owner alone, never replaced in silence."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparring.durable import append_file, kept
from sparring.errors import ConfigError, Missing
from sparring.wire.champion import key_name

NAME = "signing.key"


class FolderKey:
    """The key of a registry that is a folder: made in it on first need, unless something was signed there before."""

    def __init__(self, root: Path, signed_before: Callable[[], bool]) -> None:
        self._root, self._signed_before = root, signed_before
        self._key: Ed25519PrivateKey | None = None

    @property
    def trust(self) -> str:
        """The key's public name: what `connect(trust=…)` takes."""
        return key_name(self.private().public_key())

    def private(self) -> Ed25519PrivateKey:
        """The key itself."""
        if self._key is None:
            self._key = signing_key(self._root / NAME, may_make=not self._signed_before())
        return self._key


def signing_key(path: Path, *, may_make: bool) -> Ed25519PrivateKey:
    """The key in `path`; a new one where there is none and nothing was signed yet (`may_make`)."""
    if not path.exists():
        if not may_make:
            raise Missing(
                "the key that signed this registry's champions is gone",
                where=str(path),
                do="Bring it back from a backup; clients trust no other (or remove champions/ and tell them a new one)",
            )
        _make(path)
    return _read(path)


def _make(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with kept(path):
        try:
            append_file(path, pem, 0o600)
        except FileExistsError:
            return  # another process made it first: that one is the key


def _read(path: Path) -> Ed25519PrivateKey:
    fd = os.open(path, os.O_RDONLY)
    with os.fdopen(fd, "rb") as file:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            raise ConfigError("others may read the signing key", where=str(path), do=f"Run `chmod 600 {path}`")
        pem = file.read(4096)
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("it is not an Ed25519 key in PEM", where=str(path), do="Bring it back from a backup")
    return key
