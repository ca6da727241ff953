"""Restore a backup into an empty data folder, each file verified; all of it appears at once, or nothing does.

Example: spar restore sparring.tar.zst --data data
"""

import argparse
from pathlib import Path
from typing import Any

from sparring.cli.backup import unpack
from sparring.cli.output import Output
from sparring.store import open_store


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="what `spar backup` wrote")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    folder = Path(args.config.data)
    manifest = unpack(args.file, folder, progress=output.progress)
    with open_store(args.config.store_url) as store:  # checked, and brought to this version's format
        games = {game: store.stats(game).steps for game in store.games()}
    output.say(f"{len(manifest.members)} files verified, in {folder}")
    output.say(", ".join(f"{game}: {steps} steps" for game, steps in games.items()) or "no experience was in it")
    return {"folder": str(folder), "files": len(manifest.members), "games": games}
