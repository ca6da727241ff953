"""CURVE keys: who may call over a network, and whom callers believe.

    FOLDER/key        this side's pair, public and secret, readable by its owner alone
    FOLDER/trusted    public keys of others, one in a line, with any words behind it

The simplest safe way is one folder for all machines of a cluster: made once, copied to each. Where machines should not
share a secret, each has a pair of its own and the others' public keys in `trusted`. What goes over tcp is always
encrypted; a caller without a trusted key is not let in, and nothing is sent to a service whose key is not trusted.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from sparring.errors import ConfigError, Missing

KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")  # 32 bytes as Z85


class CurveKeys:
    """The keys in a folder. `trusted` is read again when it changes: a removed key no longer opens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "key"
        try:
            mode, words = path.stat().st_mode, path.read_text().split()
        except FileNotFoundError:
            raise Missing(
                "there is no key", where=str(folder), do="Make it with `spar services keys create`, or copy yours here"
            ) from None
        if mode & 0o077:
            raise ConfigError("others can read the secret key", where=str(path), do=f"Run chmod 600 {path}")
        if len(words) != 2 or not all(KEY.fullmatch(word) for word in words):
            raise ConfigError("it holds no pair of keys", where=str(path), do="Make it again, or copy it again")
        self.public, self._secret = words
        self._read: tuple[int, frozenset[bytes]] = (-1, frozenset())

    def callback(self, domain: str, key: bytes) -> bool:
        """The authenticator's question, when a caller connects."""
        return self.trusts(key)

    def trusts(self, key: bytes) -> bool:
        """Whether it is our own public key, or one that we were told to trust."""
        return key == self.public.encode() or key in self._others()

    def serve(self, socket: "zmq.Socket[bytes]") -> ThreadAuthenticator:
        """Let only trusted callers in where the socket is bound from now on, until the authenticator is stopped: one
        for each context that has sockets with keys."""
        guard = ThreadAuthenticator(socket.context)
        guard.configure_curve_callback("sparring", credentials_provider=self)
        guard.start()
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, b"sparring")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without its authenticator no caller comes in
        return guard

    def call(self, socket: "zmq.Socket[Any]", key: str) -> None:
        """Speak only to who holds the secret of `key`."""
        if not self.trusts(key.encode()):
            raise ConfigError(
                f"the key {key[:8]}… is not trusted", where=str(self.folder), do="Add it to the file `trusted` there"
            )
        socket.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret.encode())

    def _others(self) -> frozenset[bytes]:
        path = self.folder / "trusted"
        try:
            changed = path.stat().st_mtime_ns
        except FileNotFoundError:
            return frozenset()
        if self._read[0] != changed:
            firsts = (line.split()[0] for line in path.read_text().splitlines() if line.strip())
            self._read = (changed, frozenset(word.encode() for word in firsts if KEY.fullmatch(word)))
        return self._read[1]


def create_keys(folder: Path) -> CurveKeys:
    """A new pair in `folder`, unless there is one."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    public, secret = zmq.curve_keypair()
    fresh = folder / f".key-{os.urandom(4).hex()}"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(public + b"\n" + secret + b"\n")
    with suppress(FileExistsError):  # another process was faster, or it is there
        os.link(fresh, folder / "key")
    fresh.unlink()
    return CurveKeys(folder)
