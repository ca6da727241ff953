"""Prepare or describe the store, where experience is kept.

migrate creates the keyspace and tables of cassandra://…, or brings them to this version; repeating it is harmless.
A SQLite file of another version is refused when it is opened. describe says what is there and how full.
Example: spar store migrate --replication 3
"""

import argparse
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.store import open_store

if TYPE_CHECKING:
    from sparring.store.cassandra.store import CassandraStore

FULL_BYTES = 100_000_000  # of a partition, above which Cassandra's reads and repairs grow slow


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["migrate", "describe"])
    copies = "migrate: copies of each row in a new keyspace (3, or one for each node)"
    parser.add_argument("--replication", type=int, default=0, help=copies)
    parts = "migrate: partitions of a game and day (64); from tomorrow where there are chunks already"
    parser.add_argument("--buckets", type=int, default=0, help=parts)


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if not args.config.store_url.startswith("cassandra:"):
        return _embedded(args, output)
    return (_migrate if args.action == "migrate" else _describe)(args, output)


def _embedded(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    with open_store(args.config.store_url) as store:
        games = {game: asdict(store.stats(game)) for game in store.games()}
    output.say(f"{args.config.store_url} has this version's tables; {len(games)} games")
    return {"url": args.config.store_url, "games": games}


def _migrate(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.store.cassandra import schema
    from sparring.store.cassandra.session import CassandraAddress

    began_s = time.monotonic()
    where = CassandraAddress.read(args.config.store_url)
    now_ms = int(time.time() * 1000)
    done = schema.migrate(where, replication=args.replication, buckets=args.buckets, now_ms=now_ms)
    made = "made" if done.made else "found"
    output.say(f"keyspace {done.keyspace} {made}, {done.replication} copies of each row")
    output.say(f"tables of version {done.version}" + (f", before: {done.before}" if done.before else ""))
    since = f" from {_date(done.from_day)} on" if done.from_day else ""
    output.say(f"{done.buckets} partitions for each game and day{since}")
    return {"url": str(where), **asdict(done), "seconds": round(time.monotonic() - began_s, 3)}


def _describe(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.store.cassandra import schema
    from sparring.store.cassandra.session import CassandraAddress
    from sparring.store.cassandra.store import open_url

    with open_url(args.config.store_url) as store:
        session, where = store.session, CassandraAddress.read(args.config.store_url)
        copies = schema.replication_of(session)
        nodes = {str(host.address): bool(host.is_up) for host in session.cluster.metadata.all_hosts()}
        output.say(f"{where}, tables of version {schema.version_of(session)}")
        output.say("copies: " + ", ".join(f"{count} in {name or 'all'}" for name, count in copies.items()))
        output.say("nodes: " + ", ".join(f"{name} {'up' if up else 'down'}" for name, up in sorted(nodes.items())))
        for day, buckets in store.layout().rows:
            output.say(f"{buckets} partitions for each game and day" + (f" from {_date(day)} on" if day else ""))
        games = _games(store, output)
        layout = [{"from_day": day, "buckets": buckets} for day, buckets in store.layout().rows]
    return {"url": str(where), "replication": copies, "nodes": nodes, "layout": layout, "games": games}


def _games(store: "CassandraStore", output: Output) -> list[dict[str, Any]]:
    games = []
    for game in store.games():
        stats, largest = store.stats(game), store.largest_partition(game)
        games.append({**asdict(stats), "largest_partition_bytes": largest})
        output.say(
            f"{game}: {stats.episodes} episodes, {stats.chunks} chunks, {stats.encoded_bytes / 1e6:.1f} MB, "
            f"fullest partition {largest / 1e6:.1f} MB"
        )
        if largest > FULL_BYTES:
            output.say(f"{game}: that is above 100 MB; `spar store migrate --buckets N` makes those to come smaller")
    return games


def _date(day: int) -> str:
    return str((datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date())
