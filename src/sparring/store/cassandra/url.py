"""cassandra://HOST,HOST:PORT/KEYSPACE?…: where a store is and how sure an answer must be. No I/O."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sparring.errors import ConfigError

PORT = 9042
CONSISTENCIES = ("one", "two", "three", "quorum", "all", "local_quorum", "each_quorum", "local_one")
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_EXAMPLE = "Write cassandra://host,host:9042/keyspace"


@dataclass(frozen=True, slots=True)
class CassandraAddress:
    """One keyspace of one session. Name and password come from the environment, never from here."""

    hosts: tuple[str, ...]
    port: int
    keyspace: str
    consistency: str = "local_quorum"  # of writes, and of every read that decides about a write
    read_consistency: str = "local_quorum"  # of reads for training, statistics and export
    local_dc: str = ""  # the data centre to speak to; "": that of the hosts named here
    replication: int = 0  # copies, for `spar store migrate`; 0: 3, or as many as there are nodes
    timeout_s: float = 20.0  # for one statement
    tls: bool = False
    ca: str = ""  # PEM file of the authority that signed the nodes' certificates

    def __str__(self) -> str:
        return f"cassandra://{','.join(self.hosts)}:{self.port}/{self.keyspace}"


def read(url: str) -> CassandraAddress:
    """The address that `url` says, or a ConfigError with what to write instead."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise _bad(
            "a URL is no partition for a password", "Set CASSANDRA_USERNAME and CASSANDRA_PASSWORD in the environment"
        )
    names, port = _hosts(parts.netloc)
    keyspace = parts.path.strip("/")
    if not names:
        raise _bad(f"{url!r} names no host", _EXAMPLE)
    if not _KEYSPACE.fullmatch(keyspace):
        raise _bad(f"{keyspace!r} is no keyspace: small letters, digits and _, up to 48", _EXAMPLE)
    return CassandraAddress(names, port, keyspace, **_options(parts.query))


def _hosts(netloc: str) -> tuple[tuple[str, ...], int]:
    ports: set[str] = set()
    names = []
    for one in filter(None, netloc.split(",")):
        host, colon, port = one.rpartition(":")
        names.append(host if colon else one)
        ports |= {port} if colon else set()
    if len(ports) > 1 or not all(port.isdigit() and 0 < int(port) < 65536 for port in ports):
        raise _bad(
            f"{', '.join(sorted(ports))} is not one port", "All nodes of a session answer on the same: name it once"
        )
    return tuple(names), int(ports.pop()) if ports else PORT


def _options(query: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _READERS:
            near = difflib.get_close_matches(name, _READERS, n=1)
            raise _bad(
                f"unknown option {name!r}",
                f"Did you mean {near[0]}" if near else f"EpisodeState: {', '.join(_READERS)}",
            )
        try:
            chosen[name] = _READERS[name](value)
        except ValueError as error:
            raise _bad(f"{name}={value!r}: {error}", "Correct it") from None
    return chosen


def _consistency(value: str) -> str:
    if value.lower() not in CONSISTENCIES:
        raise ValueError(f"one of {', '.join(CONSISTENCIES)}")
    return value.lower()


def _copies(value: str) -> int:
    if not 1 <= int(value) <= 9:
        raise ValueError("1 to 9 copies")
    return int(value)


def _seconds(value: str) -> float:
    if not 0 < float(value) < 3600:
        raise ValueError("seconds, above 0")
    return float(value)


_READERS: dict[str, Callable[[str], Any]] = {
    "consistency": _consistency,
    "read_consistency": _consistency,
    "local_dc": str,
    "replication": _copies,
    "timeout_s": _seconds,
    "tls": lambda value: value.lower() in ("1", "true", "yes", "on"),
    "ca": str,
}


def _bad(wrong: str, do: str) -> ConfigError:
    return ConfigError(wrong, where="[store] url", do=do)
