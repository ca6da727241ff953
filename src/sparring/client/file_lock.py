"""A lock on a file that the operating system lets go of when its process dies, on every operating system."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sparring.errors import StoreFailed

if sys.platform == "win32":
    import msvcrt

    def _lock(file: BinaryIO) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: BinaryIO) -> None:
        # flock, not lockf: two connections of one process must exclude each other too.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def try_lock(path: Path) -> BinaryIO | None:
    """The open, locked file, or None where another holds it or it was removed meanwhile. Closing it unlocks."""
    try:
        file = path.open("ab+")
    except FileNotFoundError:
        return None  # its folder is gone
    try:
        _lock(file)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except OSError:
        pass  # held by another, or removed between opening and locking
    file.close()
    return None


@contextmanager
def locked(path: Path, timeout_s: float = 10.0) -> Iterator[None]:
    """Hold the lock for a short read and write of a file that several processes share."""
    deadline_s = time.monotonic() + timeout_s
    while (file := try_lock(path)) is None:
        if time.monotonic() > deadline_s:
            raise StoreFailed(f"it was held for {timeout_s:.0f} s", where=str(path), do="End the process that hangs")
        time.sleep(0.01)
    try:
        yield
    finally:
        file.close()


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file by `content`: readers see the old bytes or the new, also after a power cut."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
