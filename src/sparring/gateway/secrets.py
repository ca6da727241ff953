"""The data folder's own secret: what pseudonyms and player tokens are made with."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from sparring.config import open_data_folder
from sparring.errors import ConfigError
from sparring.wire.ids import GameId, PlayerId

FILE = "identity.key"
MAX_NAME_CHARACTERS = 1_024


class Secrets:
    """One random secret in `<data>/identity.key` (0600), from which one per purpose and game is derived.

    Losing the file makes every player a new one; so it belongs to the backup, and to nobody's log.
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
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    if not path.exists():
        write_private(fresh, secrets.token_hex(32).encode())
        try:
            os.link(fresh, path)  # whole or not at all, and never over another process's
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    try:
        root = bytes.fromhex(path.read_text().strip())
    except ValueError:
        root = b""
    if len(root) != 32:
        raise ConfigError("it does not hold 64 hex digits", where=str(path), do="Restore it from a backup")
    return root


def write_private(path: Path, content: bytes) -> None:
    """A new file that only its owner may read, on disk when this returns."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
