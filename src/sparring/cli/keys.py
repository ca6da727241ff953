"""Create, list and revoke the API keys of a deployment. A key is shown once, when it is made; only its hash is kept.

Scopes: record (upload play), act (ask for actions), read:game (specs, champions, models), read (that, and statistics,
runs, metrics), node (lend a machine), admin (all of these, and players' tokens); docs/scopes.md lists their calls.
Running gateways obey within seconds. Keys lie in the data folder, or where gateway.identity_url says, for several
gateways.
Example: spar keys create my-game --scopes record,act,read:game
"""

import argparse
import datetime
import time
from pathlib import Path
from typing import Any

from sparring.cli.output import Output
from sparring.errors import ConfigError
from sparring.gateway.credentials import ApiKeys, open_identity
from sparring.gateway.identity import Audit

DEFAULT_SCOPES = "record,act,read"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["create", "list", "revoke"])
    parser.add_argument("name", nargs="?", help="create: a name for people; revoke: the key's id or name")
    parser.add_argument("--scopes", default=DEFAULT_SCOPES, help=f"create: by default {DEFAULT_SCOPES}")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    data = Path(args.config.data)
    keys, audit, now_ms = ApiKeys(open_identity(args.config)), Audit(data / "audit.jsonl"), int(time.time() * 1000)
    if args.action == "list":
        return _listed(keys.all(), output)
    if not args.name:
        do = f"Write spar keys {args.action} NAME"
        raise ConfigError("no name was given", where=f"spar keys {args.action}", do=do)
    if args.action == "revoke":
        ended = keys.revoke(args.name, now_ms)
        audit.write("revoke", "cli", now_ms, key=ended.id)
        output.say(f"{ended.id} ({ended.name}) no longer holds")
        return {"id": ended.id, "revoked_at_ms": ended.revoked_at_ms}
    scopes = tuple(scope.strip() for scope in args.scopes.split(",") if scope.strip())
    key, text = keys.create(args.name, scopes, now_ms)
    audit.write("create", "cli", now_ms, key=key.id, scopes=list(scopes))
    output.say(f"{text}\n\nKeep it now: it is not shown again. It may {', '.join(scopes)}.")
    return {"id": key.id, "key": text, "scopes": list(scopes)}


def _listed(keys: list[Any], output: Output) -> dict[str, Any]:
    rows = [(key.id, key.name, " ".join(key.scopes), _day(key.created_at_ms), _day(key.revoked_at_ms)) for key in keys]
    output.table(("id", "name", "scopes", "created", "revoked"), rows)
    said = ("id", "name", "scopes", "created_at_ms", "revoked_at_ms")
    return {"keys": [{name: getattr(key, name) for name in said} for key in keys]}


def _day(at_ms: int | None) -> str:
    return "" if at_ms is None else datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).strftime("%Y-%m-%d")
