"""The data folder, whole, into one file: experience, models, champions, runs and keys.

A running server may go on; the store is copied by SQLite's own backup (one in Cassandra is not in the folder, and
not in the file: its snapshots are the ring's). The file holds keys: keep it as safe as the folder. Players
erased later are still in it: erase them again after a restore.
"""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparring.cli.output import Output


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `spar backup` takes."""
    parser.add_argument("file", nargs="?", type=Path, help="by default sparring-DATE-TIME.tar.zst, here")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Write the backup; the --json object."""
    from sparring.cli.archive import pack

    target = args.file or Path(f"sparring-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.zst")
    began_s = time.monotonic()
    packed = pack(Path(args.config.data), target, int(time.time() * 1000), progress=output.progress)
    output.say(f"{packed.files} files, {packed.bytes / 1e6:.1f} MB, as {packed.archive_bytes / 1e6:.1f} MB: {target}")
    if args.config.store_url.startswith("cassandra:"):
        output.say("experience is not in it: it is in Cassandra, whose nodes keep snapshots (docs/store.md)")
    seconds = round(time.monotonic() - began_s, 3)
    return {
        "file": str(target),
        "files": packed.files,
        "bytes": packed.bytes,
        "archive_bytes": packed.archive_bytes,
        "seconds": seconds,
    }
