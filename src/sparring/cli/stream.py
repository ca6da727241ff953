"""Create, describe, reshard or delete the stream between gateway and store.

The stream is [stream] url in spar.toml, or --url. create makes it, or changes the retention of one that exists;
reshard changes how many shards share the load while it is written and read; delete loses what it keeps.
Example: spar stream create --shards 4
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.errors import ConfigError
from sparring.sink.process import Checkpoint, SinkLock
from sparring.stream.protocol import Position

if TYPE_CHECKING:
    from sparring.stream.kinesis.admin import ShardState, StreamAdmin

ACTIONS = ("create", "describe", "reshard", "delete")
MOST_SHARDS, MOST_HOURS = 10_000, 8_760
COLUMNS = ("shard", "state", "share", "parents", "keeps", "sink behind", "first hash", "last hash")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("--url", help="kinesis://NAME?region=…&endpoint=… instead of stream.url")
    parser.add_argument("--shards", type=int, metavar="N", help="create: 1 unless given; reshard: how many from now on")
    parser.add_argument("--retention-hours", type=int, metavar="H", help="create: records are kept so long, 24 to 8760")
    parser.add_argument("--yes", action="store_true", help="delete: with everything that it keeps")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.stream.kinesis.admin import StreamAdmin

    url = args.url or args.config.stream.url
    setting = "--url" if args.url else "[stream] url"
    if not url:
        raise ConfigError("it is empty", where=setting, do="Write kinesis://NAME?region=…, or give --url")
    _check(args)
    with StreamAdmin(url, output.progress, setting=setting) as admin:
        match args.action:
            case "create":
                return _create(admin, args, output)
            case "describe":
                return _describe(admin, _places(args, url), output)
            case "reshard":
                before = admin.reshard(args.shards)
                output.say(f"{admin.address.name}: {before} → {args.shards} shards")
                return {"stream": admin.address.name, "before": before, "shards": args.shards}
            case _:
                admin.delete()
                output.say(f"{admin.address.name}: deleted")
                return {"stream": admin.address.name, "deleted": True}


def _check(args: argparse.Namespace) -> None:
    if args.action == "reshard" and args.shards is None:
        raise ConfigError("reshard to how many", where="--shards", do="Give --shards N")
    if args.shards is not None and not 1 <= args.shards <= MOST_SHARDS:
        raise ConfigError(f"{args.shards} shards", where="--shards", do=f"Give 1 to {MOST_SHARDS}")
    if args.retention_hours is not None and not 24 <= args.retention_hours <= MOST_HOURS:
        raise ConfigError(f"{args.retention_hours} hours", where="--retention-hours", do=f"Give 24 to {MOST_HOURS}")
    if args.action == "delete" and not args.yes:
        wrong = "everything that it keeps and no sink has brought into the store is lost"
        raise ConfigError(wrong, where="spar stream delete", do="Add --yes if that is meant")


def _create(admin: "StreamAdmin", args: argparse.Namespace, output: Output) -> dict[str, Any]:
    made = admin.create(args.shards or 1, args.retention_hours)
    found = admin.describe()
    open_shards = sum(not shard.closed for shard in found.shards)
    how = "made" if made else "there already"
    output.say(f"{found.name}: {how}, {open_shards} shards, records are kept for {found.retention_hours} hours")
    if not made and args.shards not in (None, open_shards):
        output.say(f"run `spar stream reshard --shards {args.shards}` for {args.shards} shards")
    said = {"stream": found.name, "made": made, "status": found.status, "shards": open_shards}
    return said | {"retention_hours": found.retention_hours}


def _places(args: argparse.Namespace, url: str) -> dict[str, Position]:
    """Where the `spar sink` of this data folder is in the stream; nothing where there was none."""
    places = Checkpoint(SinkLock(Path(args.config.data) / "sink", url)).positions
    return {shard: place.position for shard, place in places.items()}


def _describe(admin: "StreamAdmin", places: dict[str, Position], output: Output) -> dict[str, Any]:
    found = admin.describe(places)
    open_shards = [shard for shard in found.shards if not shard.closed]
    state = f"{found.status}, {found.mode.lower().replace('_', '-')}, {len(open_shards)} open shards"
    output.say(f"{found.name}: {state}, records are kept for {found.retention_hours} hours")
    output.table(COLUMNS, [_row(shard) for shard in found.shards])
    shards = [
        {**asdict(shard), "first_hash": str(shard.first_hash), "last_hash": str(shard.last_hash)}
        for shard in found.shards
    ]
    return {**asdict(found), "shards": shards, "open_shards": len(open_shards)}


def _row(shard: "ShardState") -> tuple[str, ...]:
    share = (shard.last_hash - shard.first_hash + 1) / (1 << 128)
    keeps = "nothing" if shard.empty else f"{shard.kept_ms / 1000:.1f} s"
    behind = "–" if shard.behind_ms is None else f"{shard.behind_ms / 1000:.1f} s"
    state, parents = "closed" if shard.closed else "open", ", ".join(shard.parents) or "–"
    hashes = f"{shard.first_hash:032x}", f"{shard.last_hash:032x}"
    return (shard.id, state, f"{share:.1%}", parents, keeps, behind, *hashes)
