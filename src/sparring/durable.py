"""Durable files: each is there whole or not at all, also after kill -9 and a power cut; names that stay in a folder."""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from sparring.errors import ModelDamaged, Refused, StoreFailed

DRAFT = ".tmp-"  # begins the name of a file or folder that is still being written
MAX_NAME_BYTES = 200

_ODD = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)  # a link, a file for a folder, a socket
_UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)  # the medium or the file system is damaged there


def folder_name(text: str, what: str) -> str:
    """`text` as the name of one folder: percent-encoded, dots too, so that no text leads anywhere else."""
    try:
        encoded = quote(text, safe="").replace(".", "%2E")
    except UnicodeEncodeError:
        encoded = ""
    if not 0 < len(encoded) <= MAX_NAME_BYTES or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise Refused(
            f"{what} {text[:40]!r} cannot name a folder",
            where="registry",
            do=f"Use 1 to {MAX_NAME_BYTES} plain characters",
            field=what,
            limit=MAX_NAME_BYTES,
        )
    return encoded


def write_new(path: Path, content: bytes | Iterable[bytes | memoryview], mode: int = 0o644) -> None:
    """A new file with the content, or with several one behind the other, on disk on return; its folder is not yet
    synced."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """What was created or renamed in `folder` is on disk on return."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(path: Path, root: Path) -> None:
    """`path` and every folder between it and `root`, each one's entry on disk on return."""
    path.mkdir(parents=True, exist_ok=True)
    while path != root:
        path = path.parent
        sync(path)


def create_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """`path` with `content`, whole and durable; FileExistsError where it exists, which is never changed."""
    _write(path, content, mode, os.link)


def replace_file(path: Path, content: bytes | Iterable[bytes | memoryview], mode: int = 0o644) -> None:
    """`path` with `content`, whole and durable, instead of whatever was there."""
    _write(path, content, mode, os.replace)


def _write(
    path: Path, content: bytes | Iterable[bytes | memoryview], mode: int, place: Callable[[Path, Path], None]
) -> None:
    draft = path.parent / _draft_name()
    try:
        write_new(draft, content, mode)
        place(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def publish_folder(path: Path, files: Mapping[str, bytes]) -> bool:
    """The folder `path` with `files`, whole and durable. False where a folder with content is there already."""
    draft = path.parent / _draft_name()
    draft.mkdir()
    try:
        for name, content in files.items():
            write_new(draft / name, content)
        sync(draft)
        try:
            draft.rename(path)
        except OSError:
            if not path.is_dir():
                raise
            return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        sync(path.parent)  # also when another published it: its rename may not be on disk yet
    return True


def read_inside(folder: Path, name: str, max_bytes: int) -> bytes:
    """A plain file directly in `folder`; FileNotFoundError, ModelDamaged for a link, device, giant or a place that
    the disk cannot read, StoreFailed for what may pass (no handles left, no memory)."""
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
        finally:
            os.close(at)
        with os.fdopen(fd, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > max_bytes:
                raise _odd(folder / name, f"is not a plain file of at most {max_bytes} bytes")
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _ODD:
            raise _odd(folder / name, "is not a plain file in a plain folder") from None
        if error.errno in _UNREADABLE:
            raise _odd(folder / name, f"cannot be read: {error.strerror}") from None
        wrong, do = f"it could not be opened: {error.strerror}", "Try again; if it persists, see why"
        raise StoreFailed(wrong, where=str(folder / name), do=do) from error


def remove_drafts(folder: Path, older_than_s: float, now_s: float) -> None:
    """Remove what a killed writer left behind."""
    for entry in folder.glob(f"{DRAFT}*"):
        with contextlib.suppress(FileNotFoundError):
            if now_s - entry.lstat().st_mtime > older_than_s:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


@contextlib.contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn an OSError into StoreFailed: a full disk or a failed fsync is never taken for success."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise StoreFailed(
            f"the disk would not keep it: {error.strerror or error}",
            where=str(where),
            do="Free space or mend the disk, then do it again; what was there before is untouched",
        ) from error


def _draft_name() -> str:
    return f"{DRAFT}{os.getpid()}-{secrets.token_hex(6)}"


def _odd(path: Path, wrong: str) -> ModelDamaged:
    return ModelDamaged(f"it {wrong}", where=str(path), do="Remove it, and publish the model again")
