"""The key that signs champions kept in a bucket. The bucket holds its public name alone; the key stays in a file.

Whoever makes the first key announces its name in the bucket, on condition that nobody did before, so that two machines
cannot sign with two keys. A machine without the file reads and verifies, and signs nothing.
"""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparring.durable import kept
from sparring.errors import ConfigError, Missing
from sparring.registry.s3.bucket import Bucket
from sparring.registry.signing_key import signing_key
from sparring.wire.champion import key_name

TRUST = "trust"
MAX_TRUST_BYTES = 200


class BucketKey:
    """See `succession.Signer`. `path` None: this machine has no key, and makes none."""

    def __init__(self, bucket: Bucket, path: Path | None) -> None:
        self._bucket, self._path = bucket, path
        self._announced = ""  # the name never changes once it is there
        self._key: Ed25519PrivateKey | None = None

    @property
    def trust(self) -> str:
        """The announced name; where nothing is announced yet, that of the key here, which is made and announced."""
        if not (self._announced or self._heard()):
            self.private()
        return self._announced

    def private(self) -> Ed25519PrivateKey:
        """The key itself; Missing where this machine has none, ConfigError where it has another."""
        if self._key is None:
            self._key = self._agreed()
        return self._key

    def _agreed(self) -> Ed25519PrivateKey:
        there = self._announced or self._heard()
        if self._path is None or (there and not self._path.exists()):
            raise Missing(
                f"the key that signs champions here{f' ({there})' if there else ''} is not on this machine",
                where=str(self._path or self._bucket.address),
                do="Copy it from the machine that has it to registry.signing_key (mode 600), or promote over there",
            )
        made = not self._path.exists()
        with kept(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        key = signing_key(self._path, may_make=True)
        mine = key_name(key.public_key())
        if not there and not self._bucket.put_new(TRUST, mine.encode()):
            there = self._heard()
        if there and there != mine:
            if made:
                self._path.unlink(missing_ok=True)  # it signed nothing, and never may here
            raise ConfigError(
                f"champions in {self._bucket.address} are signed by {there}, and this key is {mine}",
                where=str(self._path),
                do="Copy the right key over it, or set registry.signing_key to where it is",
            )
        self._announced = mine
        return key

    def _heard(self) -> str:
        self._announced = (self._bucket.get(TRUST, MAX_TRUST_BYTES) or b"").decode("ascii", "replace").strip()
        return self._announced
