"""The folder in which the services of one host meet, and nobody else's: its sockets, announcements and logs.

It lies in the user's own folder of services. Its owner holds a lock on it; what a killed host left behind is swept
away by the next one.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX, _OWNER = "h-", "owner"


class PrivateFolder:
    """A folder that is gone with its host."""

    def __init__(self, around: Path) -> None:
        around.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(around)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=around))
        self._handle = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def _sweep(around: Path) -> None:
    for path in around.glob(f"{_PREFIX}*"):
        try:
            handle = os.open(path / _OWNER, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # being made, or being removed
            continue
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        os.close(handle)
