"""A disk whose power can be cut: a file system in a file, of which only what was synced is in the copy.

Needs root and loop devices. The writer is stopped for the moment of the copy, so that the copy is one instant.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE_MB = 64


def possible() -> bool:
    """Whether this machine lets us mount a file."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None


def make(image: Path) -> None:
    """An empty ext4 file system in `image`."""
    with image.open("wb") as file:
        file.truncate(SIZE_MB << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    """The file system of `image`, at the folder `at`, for as long as the block lasts."""
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True, capture_output=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True, capture_output=True)


def cut(image: Path, copy: Path, writer: subprocess.Popen[str]) -> None:
    """What a disk would hold if the power failed now."""
    writer.send_signal(signal.SIGSTOP)
    try:
        shutil.copyfile(image, copy)
    finally:
        writer.send_signal(signal.SIGCONT)
