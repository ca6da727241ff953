"""Hosts by URL."""

import importlib
from pathlib import Path
from urllib.parse import urlsplit

from sparring.errors import ConfigError
from sparring.hosts.protocol import Host

HOSTS = {"local": "sparring.hosts.local:LocalHost", "ray": "sparring.hosts.ray.cluster:open_ray"}


def open_host(url: str, logs: Path | None = None, seen: str = "") -> Host:
    """The host behind `local://`, `ray://auto` or `ray://HOST:PORT`; it is a context manager. What instances on this
    machine print is kept in `logs`, where that is given. `seen`: the discovery in which others find the host, and
    scale what it runs (`spar services`); by default that of this machine."""
    scheme = urlsplit(url).scheme
    if scheme not in HOSTS:
        do = "Choose local://, ray://auto or ray://HOST:PORT"
        raise ConfigError(f"{url!r} is no host", where="host", do=do)
    module, _, name = HOSTS[scheme].partition(":")
    opened: Host = getattr(importlib.import_module(module), name)(url, logs, seen)
    return opened
