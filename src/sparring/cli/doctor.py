"""Say what works, what is missing, and the command that fixes it.

Looks at Python, the optional packages, the data folder, whether stream, store, registry and pool of spar.toml answer,
the gateway's port, whether what spar.toml says of it is dangerous (keys, TLS, proxies, files that others can read, the
file limit), and the programs and servers that tests use. Changes nothing. The exit code is 1 when something that is
needed is broken, or dangerous. Example: spar doctor --json
"""

import argparse
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparring.cli.output import Output, unexpected
from sparring.config import Config, check_data_folder
from sparring.errors import EXTRAS, SparringError, missing_package
from sparring.pool import open_pool
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.stream import open_stream

PURPOSES = {  # extra → what cannot be done without it
    "serve": "the gateway and the pages",
    "train": "training",
    "games": "gym:, pz: and spiel: games",
    "export": "spar data export and import",
    "services": "services: calls between processes and machines",
    "ray": "services on a Ray cluster",
    "aws": "kinesis:// streams, s3:// registries and lakes",
    "cassandra": "cassandra:// stores",
    "redis": "redis:// pools",
    "spark": "spar sink --spark",
    "wandb": "spar train --track wandb",
    "mlflow": "spar train --track mlflow",
    "video": "spar evaluate --video",
}
PROGRAMS = {"chromium": "browser tests", "strace": "fault-injection tests"}
SERVERS = {  # what `make servers` puts under bin/ → what it is for
    "consul": "tests of consul://",
    "redis-server": "tests of redis://",
    "cassandra-jars": "Cassandra on this machine: tests, examples/cloud-on-one-machine",
    "versitygw": "S3 on this machine: tests, examples/cloud-on-one-machine",
    "kinesalite-module": "Kinesis on this machine: tests, examples/cloud-on-one-machine",
}
JAVA = "17"  # which Spark and the tests' Cassandra both take
LOW_DISK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `fix` is the command for what is missing; `needed` marks what must work."""

    what: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """No flags of its own."""


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    findings = list(examine(args.config))
    for one in findings:
        mark = "ok " if one.ok else "BAD" if one.needed else "-- "
        output.say(f"{mark} {one.what:<22} {one.found}" + (f"\n    fix: {one.fix}" if one.fix and not one.ok else ""))
    broken = [one.what for one in findings if one.needed and not one.ok]
    output.say("all that is needed works" if not broken else f"broken: {', '.join(broken)}")
    return {"findings": [asdict(one) for one in findings], "broken": broken, "exit_code": 1 if broken else 0}


def examine(config: Config) -> Iterator[Finding]:
    """Every finding. A thread asks each server, so that all that do not answer cost one timeout."""
    with ThreadPoolExecutor(4) as together:
        stream, store = ("stream", config.stream.url, open_stream), ("store", config.store_url, open_store)
        registry = ("registry", config.registry_url, open_registry)
        pool = ("pool", config.league.pool_url, open_pool)
        asked = [together.submit(_opens, *one) for one in (stream, store, registry, pool)]
        yield from _installed()
        yield _java()
        yield _folder(Path(config.data))
        for one in asked:
            yield one.result()
    yield _port(config)
    yield _secrets(config)
    if importlib.util.find_spec(EXTRAS["serve"][0]) is not None:
        yield from _exposure(config)


def _installed() -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer", needed=True)
    for extra, purpose in PURPOSES.items():
        there = importlib.util.find_spec(EXTRAS[extra][0]) is not None
        yield Finding(f"extra [{extra}]", there, purpose, f"pip install 'sparring[{extra}]'")
    for program, purpose in PROGRAMS.items():
        path = shutil.which(program)
        yield Finding(program, path is not None, path or purpose, f"apt-get install {program}")
    for program, purpose in SERVERS.items():
        made = _servers() / "bin" / program
        server = shutil.which(program) or (str(made) if made.exists() else None)
        yield Finding(program, server is not None, server or purpose, "make servers")


def _servers() -> Path:
    """Where `make servers` puts them."""
    said = os.environ.get("SPARRING_SERVERS")
    return Path(said).expanduser() if said else Path.home() / ".cache" / "sparring" / "servers"


def _java() -> Finding:
    """The one that JAVA_HOME names, or the PATH's: Spark starts that."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    fix = f"apt-get install openjdk-{JAVA}-jdk-headless maven"
    if java is None or not Path(java).exists():
        return Finding("java", False, "Spark, and Cassandra on this machine", fix)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = said.partition('"')[2].partition('"')[0]
    if version.partition(".")[0] != JAVA:
        return Finding("java", False, f"{java} is {version or 'of no version'}, not {JAVA}", f"{fix}; set JAVA_HOME")
    return Finding("java", True, f"{java} {version}")


def _folder(folder: Path) -> Finding:
    home = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(home).free
    if not os.access(home, os.W_OK):
        return Finding("data folder", False, f"{folder} cannot be written", f"chown it, or --data DIR: {home}", True)
    try:
        check_data_folder(folder)
    except SparringError as error:
        return Finding("data folder", False, f"{folder}: {error.wrong}", error.do, needed=True)
    enough = free > LOW_DISK_BYTES
    return Finding("data folder", enough, f"{folder}, {free >> 20:,} MiB free", "free some disk space", needed=True)


def _opens(what: str, url: str, opener: Callable[[str], AbstractContextManager[object]]) -> Finding:
    """Whether it answers, by the very code that will use it; a file or folder that is not there yet is not made."""
    if not url:
        return Finding(what, True, "none: the gateway appends straight to the store")
    scheme, _, path = url.partition("://")
    if scheme in ("sqlite", "file") and not Path(path).exists():
        return Finding(what, True, f"{url}, not yet made")
    try:
        with opener(url):
            return Finding(what, True, url)
    except SparringError as error:
        said = error
    except ModuleNotFoundError as error:
        said = missing_package(error) or unexpected(error)
    return Finding(what, False, said.wrong, said.do, needed=True)


def _port(config: Config) -> Finding:
    address = (config.gateway.host, config.gateway.port)
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as probe:
        probe.settimeout(1)
        taken = address[1] != 0 and probe.connect_ex(address) == 0
    if taken:
        return Finding("gateway", True, f"something answers on {address[0]}:{address[1]} (a running `spar serve`?)")
    return Finding("gateway", True, f"{address[0]}:{address[1]} is free")


def _secrets(config: Config) -> Finding:
    """Whether this user alone can read the files that open doors: one who has identity.key can make player tokens."""
    data, registry = Path(config.data), config.registry_url
    folders = [data] + [_local(url) for url in (config.identity_url, registry) if url.startswith("file:")]
    named = [config.gateway.tls_key, config.registry.signing_key.replace("{data}", config.data)]
    files = {folder / name for folder in folders for name in ("identity.key", "tls-key.pem", "signing.key")}
    files |= {key for folder in folders for key in folder.glob("keys/*.json")} | {Path(one) for one in named if one}
    files |= {Path(config.services.keys) / "key"} if config.services.keys else set()
    there = [path for path in sorted(files) if path.is_file()]
    read = [str(path) for path in there if path.stat().st_mode & 0o077]
    found = f"others can read {', '.join(read)}" if read else f"{len(there)} files, which their owner alone can read"
    return Finding("secrets", not read, found, f"chmod 600 {' '.join(read)}", needed=True)


def _local(url: str) -> Path:
    return Path("/" + url.removeprefix("file:").lstrip("/"))


def _exposure(config: Config) -> Iterator[Finding]:
    """What the gateway would lay open with these settings; `spar serve` refuses the first two."""
    import resource

    from sparring.gateway.connections import OTHER_FILES
    from sparring.gateway.credentials import ApiKeys
    from sparring.gateway.identity import is_loopback
    from sparring.registry import open_objects

    gateway = config.gateway
    local, where = is_loopback(gateway.host), f"gateway.host = {gateway.host}"
    safe, found = local or bool(gateway.tls_cert), gateway.tls_cert or f"none, {where}"
    yield Finding("tls", safe, found, "spar serve --tls self-signed, or gateway.tls_cert and tls_key", needed=True)
    try:
        keys = ApiKeys(open_objects(config.identity_url, "gateway.identity_url")).all()
        count = sum(key.revoked_at_ms is None for key in keys)
        found = f"{count}, {where}" + (
            ": every user of this machine may record, act and read" if local and not keys else ""
        )
        yield Finding("keys", local or count > 0, found, "spar keys create NAME", needed=True)
    except SparringError as error:
        yield Finding("keys", False, error.wrong, error.do, needed=True)
    anyone = [one for one in gateway.trusted_proxies if one.endswith("/0")]
    found = ", ".join(gateway.trusted_proxies) or "none: a caller's address is its connection's"
    fix = "name your load balancer's own addresses: others could claim any address with X-Forwarded-For"
    yield Finding("trusted proxies", not anyone, found, fix, needed=True)
    needed, (_, hard) = gateway.connections + OTHER_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= needed
    found = f"{'no limit' if hard == resource.RLIM_INFINITY else hard}, gateway.connections needs {needed}"
    yield Finding("file limit", enough, found, f"ulimit -Hn {needed}; in a systemd unit LimitNOFILE={needed}")
