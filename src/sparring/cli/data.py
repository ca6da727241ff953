"""Look at recorded play, move it, erase a player.

stats [GAME] · quality GAME · export GAME · import FILE · erase [GAME] PLAYER · verify. export writes one Parquet file
(--to FILE), or a Minari dataset of one seat (--minari DIR --dataset NAME); import reads either: `spar data import
FILE`, or `spar data import GAME --minari DIR --dataset NAME`. erase takes a pseudonym, or with --name the game's own
name for the person, and removes every seat of their episodes.
Example: spar data export connect-four --to play.parquet --since 7d
"""

import argparse
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from sparring.cli.output import Output, recorded_play
from sparring.errors import ConfigError
from sparring.games.catalogue import Catalogue, spec_of
from sparring.games.chunk_checks import check_chunk
from sparring.games.spec import GameSpec
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk, Source
from sparring.wire.ids import GameId, ModelId, PlayerId

IMPORT_CHUNKS = 64  # appended at once


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("what", nargs="*", metavar="GAME|FILE|PLAYER")
    parser.add_argument("--to", type=Path, metavar="FILE", help="export: the Parquet file to write")
    parser.add_argument("--minari", type=Path, metavar="DIR", help="export, import: the folder of Minari datasets")
    parser.add_argument("--dataset", metavar="NAME", help="export, import: such as sparring/cartpole-v0")
    parser.add_argument("--seat", type=int, help="export, import: this seat alone; with --minari by default 0")
    parser.add_argument("--name", action="store_true", help="erase: PLAYER is the game's name, not a pseudonym")
    chosen = parser.add_argument_group("which chunks (quality, export)")
    chosen.add_argument("--version", action="append", default=[], help="of the game; may be given several times")
    chosen.add_argument("--source", action="append", default=[], choices=get_args(Source))
    chosen.add_argument("--actor", action="append", default=[], help='"person", "script:NAME", or all of "model:"')
    chosen.add_argument("--since", metavar="WHEN", help="received since: 2026-01-31, or 7d for the last seven days")
    chosen.add_argument("--until", metavar="WHEN", help="received before")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    with open_store(args.config.store_url) if args.action == "import" else recorded_play(args.config) as store:
        return ACTIONS[args.action](args, output, store)


def _stats(args: argparse.Namespace, output: Output, store: Store) -> dict[str, Any]:
    games = [GameId(game) for game in args.what] or store.games()
    found = [store.stats(game) for game in games]
    rows = [
        (s.game, s.episodes, s.incomplete_episodes, s.steps, s.chunks, s.players, f"{s.encoded_bytes / 1e6:.1f} MB")
        for s in found
    ]
    output.table(("game", "episodes", "incomplete", "steps", "chunks", "players", "size"), rows)
    for s in found:
        for what, counts in (("source", s.steps_by_source), ("version", s.steps_by_version)):
            if counts:
                output.say(f"{s.game} by {what}: " + ", ".join(f"{name} {steps}" for name, steps in counts.items()))
    return {"games": [asdict(s) for s in found]}


def _quality(args: argparse.Namespace, output: Output, store: Store) -> dict[str, Any]:
    from sparring.store.quality import quality

    found = quality(store, _query(args), progress=lambda chunks: output.progress(f"{chunks} chunks read"))
    output.say(f"{found.episodes} episodes, {found.steps} steps; {found.incomplete_share:.0%} of episodes incomplete")
    for name, shares in (
        ("actor", found.by_actor),
        ("source", found.by_source),
        ("player", found.by_player),
        ("uploader", found.by_uploader),
        ("action", found.actions if len(found.actions) <= 32 else {}),
    ):
        if shares:
            output.say(f"by {name}: " + ", ".join(f"{key} {share:.1%}" for key, share in shares.items()))
    if found.action_entropy is not None:
        output.say(f"actions: entropy {found.action_entropy:.2f} of 1, rarely tried: {len(found.rarely_tried)}")
    if found.returns:
        output.say("returns: " + ", ".join(f"{key} {value:.4g}" for key, value in found.returns.items()))
    known = f"with legal {found.legal_share:.0%}, logp {found.logp_share:.0%}"
    output.say(f"rewarded steps {found.rewarded_share:.1%}, {known}")
    for drift in found.drift[:5]:
        output.say(f"from version {drift.versions[0]} to {drift.versions[1]}: {drift.what} moved by {drift.shift:.2f}")
    for text in found.suits:
        output.say(f"suits    {text}")
    for text in found.missing:
        output.say(f"missing  {text}")
    return {"game": _game(args), **asdict(found)}


def _export(args: argparse.Namespace, output: Output, store: Store) -> dict[str, Any]:
    query = _query(args) if args.seat is None else replace(_query(args), seats=(args.seat,))
    if args.minari:
        from sparring.store.exchange import minari as minari_sets

        name = args.dataset or f"sparring/{re.sub(r'[^-_/a-z0-9]', '-', query.game.lower())}-v0"
        spec, show = _spec(args, query.game), lambda episodes: output.progress(f"{episodes} episodes")
        done = minari_sets.write(store, query, spec, args.minari, name, seat=_seat(args, spec), progress=show)
        output.say(f"{done.episodes} episodes, {done.steps} steps as {name} in {args.minari}; skipped {done.skipped}")
        return {"dataset": name, "folder": str(args.minari), **asdict(done)}
    if args.to is None:
        raise ConfigError("no file", where="spar data export", do="Add --to FILE.parquet, or --minari DIR")
    from sparring.store.exchange import parquet

    wrote = parquet.write(store, query, args.to, progress=lambda steps: output.progress(f"{steps} steps"))
    output.say(f"{wrote.steps} steps in {wrote.chunks} chunks, {wrote.bytes / 1e6:.1f} MB: {args.to}")
    return {"file": str(args.to), **asdict(wrote)}


def _import(args: argparse.Namespace, output: Output, store: Store) -> dict[str, Any]:
    if len(args.what) != 1:
        raise ConfigError("import takes one FILE, or a GAME with --minari", where="spar data", do="Name it")
    if args.minari:
        from sparring.store.exchange import minari as minari_sets

        if not args.dataset:
            raise ConfigError("no dataset", where="spar data import", do="Add --dataset NAME")
        spec = _spec(args, GameId(args.what[0]))
        chunks = minari_sets.read(args.minari, args.dataset, spec, seat=_seat(args, spec))
    else:
        from sparring.store.exchange import parquet

        chunks = (one for one in parquet.read(Path(args.what[0])) if args.seat in (None, one.header.seat))
    counts = _append_all(store, chunks, Catalogue.from_config(args.config), output)
    output.say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "nothing to import")
    return {"verdicts": counts}


def _append_all(store: Store, chunks: Iterable[Chunk], catalogue: Any, output: Output) -> dict[str, int]:
    """Append in groups. A chunk of a game that the catalogue knows must keep to its spec, as at the gateway."""
    import msgspec

    counts: dict[str, int] = {}
    group: list[Chunk] = []

    def flush() -> None:
        for chunk, kept in zip(group, store.append(group), strict=True):
            counts[kept.verdict] = counts.get(kept.verdict, 0) + 1
            if kept.reason and counts[kept.verdict] <= 5:
                output.say(f"{kept.verdict}: episode {chunk.header.episode}: {kept.reason}")
        group.clear()
        output.progress(f"{sum(counts.values())} chunks")

    for chunk in chunks:
        spec = catalogue.spec(chunk.header.game, chunk.header.version)
        if spec is not None:
            check_chunk(chunk, spec)
        # Received now, whatever the file says: that is when this store's models may first have seen it.
        header = msgspec.structs.replace(chunk.header, received_at_ms=int(time.time() * 1000))
        group.append(Chunk(header, chunk.columns))
        if len(group) == IMPORT_CHUNKS:
            flush()
    if group:
        flush()
    return counts


def _erase(args: argparse.Namespace, output: Output, store: Store) -> dict[str, Any]:
    if len(args.what) not in (1, 2):
        raise ConfigError("erase takes [GAME] PLAYER", where="spar data", do="Name the player")
    *game, who = args.what
    results, catalogue = [], Catalogue.from_config(args.config)
    for one in [GameId(name) for name in game] or store.games():
        player = PlayerId(who)
        if args.name:
            from sparring.gateway.credentials import open_identity
            from sparring.gateway.identity import secrets_for

            player = secrets_for(store, open_identity(args.config)).pseudonym(one, who)
        gone = store.erase(one, player, catalogue.views(one))
        output.say(f"{one}: {gone.episodes} episodes, {gone.steps} steps of all seats, {gone.chunks} chunks erased")
        models: list[ModelId] = []
        if gone.first_received_ms is not None:
            with open_registry(args.config.registry_url) as registry:
                models = registry.saw(one, gone.first_received_ms)
        for model in models:
            output.say(f"{one}: model {model[:12]} may have learned from them: retrain or retire it")
        results.append({"game": one, "player": player, **asdict(gone), "models": models})
    return {"erased": results}


def _verify(args: argparse.Namespace, output: Output, store: Store) -> dict[str, Any]:
    chunks = sum(1 for game in store.games() for _ in store.read(Query(game)))
    damaged = [asdict(key) | {"wrong": wrong} for key, wrong in getattr(store, "damaged", {}).items()]
    output.say(f"{chunks} chunks are as they were stored; {len(damaged)} are damaged")
    for one in damaged:
        output.say(f"damaged: {one}")
    return {"chunks": chunks, "damaged": damaged, "exit_code": 1 if damaged else 0}


def _query(args: argparse.Namespace) -> Query:
    return Query(
        _game(args),
        versions=tuple(args.version),
        sources=tuple(args.source),
        actors=tuple(args.actor),
        since_ms=_when(args.since) if args.since else 0,
        until_ms=_when(args.until) if args.until else 1 << 62,
    )


def _game(args: argparse.Namespace) -> GameId:
    if len(args.what) != 1:
        raise ConfigError(f"{args.action} takes one GAME", where="spar data", do="`spar data stats` lists them")
    return GameId(args.what[0])


def _spec(args: argparse.Namespace, game: GameId) -> GameSpec:
    catalogue = Catalogue.from_config(args.config)
    wanted = catalogue.spec(game, args.version[-1]) if args.version else catalogue.newest(game)
    return wanted or spec_of(game)


def _seat(args: argparse.Namespace, spec: GameSpec) -> int:
    """The seat of a Minari dataset."""
    seat: int = args.seat or 0
    if not 0 <= seat < len(spec.seats):
        do = f"Count from 0 to {len(spec.seats) - 1}"
        raise ConfigError(f"--seat {seat}", where=f"game {spec.id}", do=do)
    return seat


def _when(text: str) -> int:
    """Unix milliseconds of a date, a date with time, or so many days ago; without a zone it is UTC."""
    try:
        if text.endswith("d"):
            when = datetime.now(UTC) - timedelta(days=float(text[:-1]))
        else:
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
    except ValueError:
        do = "Write 2026-01-31, 2026-01-31T12:00 or 7d"
        raise ConfigError(f"{text!r} is no time", where="--since, --until", do=do) from None
    return int(when.timestamp() * 1000)


ACTIONS = {
    "stats": _stats,
    "quality": _quality,
    "export": _export,
    "import": _import,
    "erase": _erase,
    "verify": _verify,
}
