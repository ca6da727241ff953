"""Copy the whole data folder into one file: experience, models, champions, runs and keys.

The server may go on running: SQLite's own backup copies the databases. A store in Cassandra is not in the folder, and
so not in the file: take Cassandra's snapshots. The file holds keys: keep it as safe as the folder. It still holds
players who are erased later: erase them again after a restore. Example: spar backup sparring.tar.zst
"""

import argparse
import contextlib
import hashlib
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec
import zstandard

from sparring import __version__
from sparring.cli.output import Output
from sparring.errors import Missing, Refused

MANIFEST = "manifest.json"
BLOCK_BYTES = 1 << 20
_SQLITE = b"SQLite format 3\0"
_PASSING = ("-wal", "-shm", "-journal", ".partial", ".lock", ".sock")  # belong to a running process


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, help="by default sparring-DATE-TIME.tar.zst, here")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    target = args.file or Path(f"sparring-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.zst")
    began_s = time.monotonic()
    members = pack(Path(args.config.data), target, int(time.time() * 1000), progress=output.progress).members
    size, packed = sum(member.bytes for member in members.values()), target.stat().st_size
    output.say(f"{len(members)} files, {size / 1e6:.1f} MB, as {packed / 1e6:.1f} MB: {target}")
    if args.config.store_url.startswith("cassandra:"):
        output.say("experience is not in it: it is in Cassandra, whose nodes keep snapshots (docs/store.md)")
    said = {"file": str(target), "files": len(members), "bytes": size, "archive_bytes": packed}
    return {**said, "seconds": round(time.monotonic() - began_s, 3)}


# The file is a tar inside zstd, closed by a manifest with each member's SHA-256.


class Member(msgspec.Struct, frozen=True):
    """One file in the archive."""

    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """What a backup holds."""

    format: int
    sparring: str
    created_at_ms: int
    members: dict[str, Member]


def pack(folder: Path, target: Path, now_ms: int, progress: Callable[[str], None] = lambda name: None) -> Manifest:
    """Copy the folder whole into `target`, which appears only once it is complete."""
    if not folder.is_dir():
        raise Missing("there is no data folder", where=str(folder), do="Name it with --data")
    if target.resolve().is_relative_to(folder.resolve()):
        raise Refused("it lies inside the data folder", where=str(target), do="Write the backup elsewhere")
    partial = target.with_name(f"{target.name}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it holds keys
    manifest = Manifest(1, __version__, now_ms, {})
    try:
        with os.fdopen(handle, "wb") as file:
            with (
                zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as squeezed,
                tarfile.open(fileobj=squeezed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                for path in _files(folder):
                    name = path.relative_to(folder).as_posix()
                    progress(name)
                    if (member := _add(tar, path, name, target.resolve().parent)) is not None:
                        manifest.members[name] = member
                content = msgspec.json.encode(manifest)
                info = tarfile.TarInfo(MANIFEST)
                info.size, info.mode = len(content), 0o600
                tar.addfile(info, io.BytesIO(content))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def unpack(archive: Path, folder: Path, progress: Callable[[str], None] = lambda name: None) -> Manifest:
    """Restore into `folder`, which must be empty or absent; it appears whole and verified, or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused("the data folder is not empty", where=str(folder), do="Name another with --data, or move it away")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.restoring-", dir=folder.parent))
    try:
        with _reading(archive) as tar:
            manifest = _extract(tar, beside, archive, progress)
        if folder.exists():
            folder.rmdir()  # empty, as was just seen; fails where it is not any more
        beside.replace(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return manifest


def _files(folder: Path) -> Iterator[Path]:
    """Every regular file. Champions come first: the models that they name are then already there to be copied."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    kept = [path for path in found if not path.name.endswith(_PASSING)]
    return iter(sorted(kept, key=lambda path: ("champions" not in path.parts, path)))


def _add(tar: tarfile.TarFile, path: Path, name: str, scratch: Path) -> Member | None:
    """Copy one file as it is at one moment; None where it vanished."""
    try:
        with _frozen(path, scratch) as copy:
            digest = hashlib.file_digest(copy, "sha256").hexdigest()
            info = tarfile.TarInfo(name)
            info.size, info.mode = copy.tell(), path.stat().st_mode & 0o777
            copy.seek(0)
            tar.addfile(info, copy)
            return Member(digest, info.size)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _frozen(path: Path, scratch: Path) -> Iterator[io.BufferedReader]:
    """A copy that no longer changes, beside the archive since there must be room there anyway."""
    with tempfile.NamedTemporaryFile(dir=scratch, prefix=".backup-", suffix=".partial") as copy:
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) != _SQLITE:
                file.seek(0)
                shutil.copyfileobj(file, copy, BLOCK_BYTES)
                copy.flush()
            else:
                with (
                    contextlib.closing(sqlite3.connect(path, timeout=10)) as source,
                    contextlib.closing(sqlite3.connect(copy.name)) as sink,
                ):
                    source.backup(sink)
        with open(copy.name, "rb") as whole:
            yield whole


@contextlib.contextmanager
def _reading(archive: Path) -> Iterator[tarfile.TarFile]:
    do = "Take another backup; this one is damaged or is none"
    try:
        with (
            archive.open("rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file) as plain,
            tarfile.open(fileobj=plain, mode="r|") as tar,
        ):
            yield tar
    except FileNotFoundError as error:
        raise Missing(f"there is no {error.filename}", where="spar restore", do="Name the backup") from None
    except (tarfile.TarError, zstandard.ZstdError, EOFError, OSError) as error:
        raise Refused(f"it does not read: {error}", where=str(archive), do=do) from None


def _extract(tar: tarfile.TarFile, into: Path, archive: Path, progress: Callable[[str], None]) -> Manifest:
    found: dict[str, Member] = {}
    manifest: Manifest | None = None
    for info in tar:
        content = tar.extractfile(info) if info.isfile() else None
        if content is None or not _is_plain(info.name) or info.name in found or manifest is not None:
            raise Refused(f"it has a member {info.name!r} that no backup has", where=str(archive), do="Do not trust it")
        if info.name == MANIFEST:
            manifest = _manifest(content.read(), archive)
            continue
        progress(info.name)
        found[info.name] = _extract_one(content, into / info.name, info)
    if manifest is None or manifest.members != found:
        wrong = "it is cut short" if manifest is None else _difference(manifest.members, found)
        raise Refused(wrong, where=str(archive), do="Take another backup; nothing was restored")
    return manifest


def _extract_one(content: IO[bytes], path: Path, info: tarfile.TarInfo) -> Member:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, info.mode & 0o777 | 0o600)
    digest = hashlib.sha256()
    with os.fdopen(handle, "wb") as file:
        while block := content.read(BLOCK_BYTES):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return Member(digest.hexdigest(), info.size)


def _manifest(content: bytes, archive: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise Refused(f"its manifest does not read: {error}", where=str(archive), do="Take another backup") from None
    if manifest.format != 1:
        do = f"Use Sparring {manifest.sparring} or newer"
        raise Refused(f"its format is {manifest.format}, this Sparring reads 1", where=str(archive), do=do)
    return manifest


def _is_plain(name: str) -> bool:
    """Whether the name stays inside the folder on every system."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name and ":" not in name


def _difference(wanted: dict[str, Member], found: dict[str, Member]) -> str:
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            return f"{name} is {'not what it was' if name in wanted and name in found else 'missing or added'}"
    return "its manifest does not fit"
