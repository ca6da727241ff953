"""The key that signs champions: a file that its owner alone can read, made once, and never replaced without a word.

The registry holds the public name of the key (`trust`), created only where there is none, so that two machines cannot
sign with two keys. A machine without the key file reads and verifies, and signs nothing.
"""

import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparring.durable import create_file, disk_errors
from sparring.errors import ConfigError, Missing
from sparring.registry.protocol import Objects
from sparring.wire.champion import key_name

TRUST = "trust"
MAX_TRUST_BYTES = 200


class SigningKey:
    """The key of one registry, in the file `path`; None: this machine has no key, and makes none."""

    def __init__(self, objects: Objects, path: Path | None) -> None:
        self._objects, self._path = objects, path
        self._trust = ""  # never changes once it is written
        self._key: Ed25519PrivateKey | None = None

    @property
    def trust(self) -> str:
        """The key's public name. Where a key file is here it is checked; where nothing is written yet, one is made."""
        if self._key is None and ((self._path is not None and self._path.exists()) or not self._written()):
            self.private()
        return self._trust

    def private(self) -> Ed25519PrivateKey:
        """The key itself; Missing where this machine has none, ConfigError where it has another."""
        if self._key is None:
            self._key = self._agreed()
        return self._key

    def _agreed(self) -> Ed25519PrivateKey:
        written = self._written()
        made = self._path is not None and not self._path.exists()
        signed = made and (written or next(iter(self._objects.list("champions/", 1)), None))
        if self._path is None or (signed and not self._path.exists()):
            raise Missing(
                f"the key that signs champions here{f' ({written})' if written else ''} is not on this machine",
                where=str(self._path or self._objects),
                do="Copy it from a backup or from the machine that has it to registry.signing_key (mode 600)",
            )
        if made:
            _make(self._path)
        key = _read(self._path)
        mine = key_name(key.public_key())
        if not written and not self._objects.put_new(TRUST, mine.encode()):
            written = self._written()
        if written and written != mine:
            if made:
                self._path.unlink(missing_ok=True)  # it signed nothing, and never may here
            raise ConfigError(
                f"champions in {self._objects} are signed by {written}, and this key is {mine}",
                where=str(self._path),
                do="Copy the right key over it, or set registry.signing_key to where it is",
            )
        self._trust = mine
        return key

    def _written(self) -> str:
        if not self._trust:
            self._trust = (self._objects.get(TRUST, MAX_TRUST_BYTES) or b"").decode("ascii", "replace").strip()
        return self._trust


def _make(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            create_file(path, pem, 0o600)
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
        raise ConfigError("it is not an Ed25519 key in PEM", where=str(path), do="Restore it from a backup")
    return key
