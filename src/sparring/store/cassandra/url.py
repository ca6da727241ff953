"""cassandra://HOST,HOST:PORT/KEYSPACE?…: where a store is, and how many replicas must answer. No I/O."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sparring.errors import ConfigError

PORT = 9042
CONSISTENCIES = ("one", "two", "three", "quorum", "all", "local_quorum", "each_quorum", "local_one")
_EXAMPLE = "Write cassandra://host,host:9042/keyspace"


@dataclass(frozen=True, slots=True)
class CassandraAddress:
    """One keyspace of one cluster. Name and password come from the environment, never from the URL."""

    hosts: tuple[str, ...]
    port: int
    keyspace: str
    consistency: str = "local_quorum"  # of writes, and of every read that decides about a write
    read_consistency: str = "local_quorum"  # of reads for training, statistics and export
    local_dc: str = ""  # the data centre to connect to; "": that of the hosts named here
    replication: int = 0  # copies, for `spar store migrate`; 0: 3, or as many as there are nodes
    timeout_s: float = 20.0  # for one statement
    tls: bool = False
    ca: str = ""  # PEM file of the authority that signed the nodes' certificates

    def __str__(self) -> str:
        return f"cassandra://{','.join(self.hosts)}:{self.port}/{self.keyspace}"

    @classmethod
    def read(cls, url: str) -> "CassandraAddress":
        """The address in `url`; ConfigError with the right form where it is none."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            do = "Set CASSANDRA_USERNAME and CASSANDRA_PASSWORD in the environment"
            raise _wrong("a URL is no place for a password", do)
        hosts, port = _hosts(parts.netloc)
        if not hosts:
            raise _wrong(f"{url!r} names no host", _EXAMPLE)
        keyspace = parts.path.strip("/")
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", keyspace):
            raise _wrong(f"{keyspace!r} is no keyspace: small letters, digits and _, up to 48", _EXAMPLE)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(hosts, port, keyspace, **{name: _option(name, value) for name, value in options.items()})


def _hosts(netloc: str) -> tuple[tuple[str, ...], int]:
    found = [re.fullmatch(r"(.*?)(?::([^:]*))?", one) for one in netloc.split(",") if one]
    names, ports = [one[1] for one in found if one], {one[2] for one in found if one and one[2] is not None}
    if len(ports) > 1 or not all(port.isdigit() and 0 < int(port) < 65536 for port in ports):
        do = "All nodes of a cluster answer on the same: name it once"
        raise _wrong(f"{', '.join(sorted(ports))} is not one port", do)
    return tuple(names), int(ports.pop()) if ports else PORT


def _is(pattern: str, made: Callable[[str], Any], expected: str) -> Callable[[str], Any]:
    """A reader of values that match `pattern`, whole."""

    def read(value: str) -> Any:
        if not re.fullmatch(pattern, value.lower()):
            raise ValueError(expected)
        return made(value)

    return read


_CONSISTENCY = _is("|".join(CONSISTENCIES), str.lower, f"one of {', '.join(CONSISTENCIES)}")
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "consistency": _CONSISTENCY,
    "read_consistency": _CONSISTENCY,
    "local_dc": str,
    "replication": _is("[1-9]", int, "1 to 9 copies"),
    "timeout_s": _is(r"(?=.*[1-9])\d{1,3}(\.\d+)?", float, "seconds, above 0 and below 1000"),
    "tls": lambda value: value.lower() in ("1", "true", "yes", "on"),
    "ca": str,
}


def _option(name: str, value: str) -> Any:
    if name not in _OPTIONS:
        near = difflib.get_close_matches(name, _OPTIONS, n=1)
        do = f"Did you mean {near[0]}" if near else f"Known: {', '.join(_OPTIONS)}"
        raise _wrong(f"unknown option {name!r}", do)
    try:
        return _OPTIONS[name](value)
    except ValueError as error:
        raise _wrong(f"{name}={value!r}: {error}", "Correct it") from None


def _wrong(wrong: str, do: str) -> ConfigError:
    return ConfigError(wrong, where="[store] url", do=do)
