"""List running services, scale them, or make the keys of calls between machines.

`scale` asks the host that runs the service, such as a running `spar train`, on this machine or found by
services.discovery. `keys create` makes a key pair in the folder of services.keys, or in --folder; copy that folder to
every machine that calls or is called. Example: spar services scale actor=6
"""

import argparse
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.errors import ConfigError, Missing, Unreachable

if TYPE_CHECKING:
    from sparring.services.discovery import Discovery, Instance

    _Host = tuple[Discovery, Instance, list[str]]

SCALE_S = 60.0  # those who leave may take their time, and a learner looks between two turns
COLUMNS = ("service", "id", "address", "pid", "outstanding", "for")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "scale", "keys"])
    parser.add_argument("what", nargs="*", help="scale: NAME=COUNT …; keys: create or show")
    parser.add_argument("--discovery", metavar="URL", help="instead of services.discovery")
    parser.add_argument("--pid", type=int, metavar="N", help="scale: of that process, where several run the service")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keys: instead of services.keys")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    if args.action == "keys":
        return _keys(args, output)
    url = args.discovery or args.config.discovery_url
    if args.action == "list":
        return _list(url, output)
    return _scale(url, args, output)


def _list(url: str, output: Output) -> dict[str, Any]:
    from sparring.services.solver import call_instance, service_status

    rows: list[dict[str, Any]] = []
    hosts: set[str] = set()
    for discovery in _opened(url):
        for one, outstanding in service_status(discovery):
            row = {name: getattr(one, name) for name in ("service", "id", "address", "pid", "host", "since_s")}
            row |= {"outstanding": outstanding, "idempotent": list(one.idempotent)}
            if one.service != "host":
                rows.append(row)
            elif _host_id(one) not in hosts:
                hosts.add(_host_id(one))
                rows.append(row)
                with suppress(Unreachable):  # it has just ended
                    rows += [  # on Ray, whose actors no discovery shows
                        {"service": runs["name"], **place, "outstanding": None, "idempotent": []}
                        for runs in call_instance(discovery, one, "list")
                        for place in runs.get("instances", ())
                    ]
        discovery.close()
    if not rows:
        output.say(f"no service is there ({url})")
        return {"discovery": url, "services": []}
    ids = [(row["service"], row["id"], row["address"], row["pid"] or "") for row in rows]
    output.table(COLUMNS, [(*one, _busy(row), _ago(row["since_s"])) for one, row in zip(ids, rows, strict=True)])
    return {"discovery": url, "services": rows}


def _busy(row: dict[str, Any]) -> str:
    if row["outstanding"] is not None:
        return str(row["outstanding"])
    return "no answer" if row["address"].startswith(("ipc:", "tcp:")) else ""


def _ago(since_s: float) -> str:
    if not since_s:
        return ""
    seconds = max(0, int(time.time() - since_s))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _scale(url: str, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.services.solver import call_instance

    counts = dict(_count(text) for text in args.what)
    if not counts:
        raise ConfigError("nothing to scale was named", where="spar services scale", do="Write NAME=COUNT: actor=6")
    discoveries = _opened(url)
    try:
        hosts = _hosts(discoveries, args.pid)
        scaled: dict[str, int] = {}
        for name, count in counts.items():
            discovery, host = _host_of(hosts, name, url)
            scaled[name] = call_instance(discovery, host, "scale", name, count, deadline_s=SCALE_S)
            output.say(f"{name}: {scaled[name]}")
    finally:
        for discovery in discoveries:
            discovery.close()
    return {"discovery": url, "scaled": scaled}


def _hosts(discoveries: "list[Discovery]", pid: int | None) -> "list[_Host]":
    """Those there are, and what each runs."""
    from sparring.services.solver import call_instance

    found: list[_Host] = []
    for discovery in discoveries:
        for host in discovery.instances("host"):
            known = any(_host_id(host) == _host_id(other) for _, other, _ in found)
            if known or pid not in (None, host.pid):
                continue
            with suppress(Unreachable):  # it has just ended
                found.append((discovery, host, [one["name"] for one in call_instance(discovery, host, "list")]))
    return found


def _host_id(host: "Instance") -> str:
    """The same for a host that is found in its own folder and in the common discovery, also from another machine."""
    return host.id.partition("@")[0]


def _host_of(hosts: "list[_Host]", name: str, url: str) -> "tuple[Discovery, Instance]":
    """The host that runs a service."""
    runners = [(discovery, host) for discovery, host, runs in hosts if name in runs]
    if not runners:
        do = "See what runs: `spar services list`" if hosts else "Start a run with actors, or name its --discovery"
        said = f"none of {len(hosts)} hosts runs {name}" if hosts else "no host is there"
        raise Missing(said, where=url, do=do)
    if len(runners) > 1:
        pids = ", ".join(f"{host.pid} on {host.host}" if host.host else str(host.pid) for _, host in runners)
        raise ConfigError(f"{len(runners)} hosts run {name}", where=url, do=f"Say --pid, one of {pids}")
    return runners[0]


def _count(text: str) -> tuple[str, int]:
    name, sign, count = text.partition("=")
    if not name or not sign or not count.isdecimal():
        raise ConfigError(f"{text!r} is no count", where="spar services scale", do="Write NAME=COUNT: actor=6")
    return name, int(count)


def _opened(url: str) -> "list[Discovery]":
    """The discovery, and those of hosts on this machine, whose services register in folders of their own."""
    from sparring.services.discovery import Local, default_folder, open_discovery

    discovery = open_discovery(url)
    around = discovery.folder if isinstance(discovery, Local) else default_folder()
    return [discovery, *(Local(path) for path in sorted(around.glob("h-*")) if path.is_dir())]


def _keys(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.services.keys import CurveKeys, create_keys

    said = args.config.services.keys
    folder = args.folder or (Path(said) if said else Path(args.config.data) / "services-keys")
    folder = Path(os.path.abspath(folder))
    if args.what not in (["create"], ["show"]):
        wrong = f"{' '.join(args.what) or 'nothing'!r} cannot be done with keys"
        raise ConfigError(wrong, where="spar services keys", do="Write create or show")
    keys = create_keys(folder) if args.what == ["create"] else CurveKeys(folder)
    output.say(f"{folder}\npublic key {keys.public}")
    if args.what == ["create"]:
        output.say(f'\nCopy the folder to every machine of the cluster, and set there: [services] keys = "{folder}"')
    return {"folder": str(folder), "public": keys.public}
