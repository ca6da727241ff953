"""Who offers a service, and where: `local://` (local.py), `consul://` (consul.py), Ray's named actors (`ray://`).

local://                      this user's processes on this machine
local:///folder               those that meet in that folder
consul://127.0.0.1:8500       many machines, each with its Consul agent (docs/services.md has its options)
"""

import difflib
import importlib
import os
from urllib.parse import urlsplit

from sparring.errors import ConfigError
from sparring.services.local_discovery import Local, default_folder
from sparring.services.protocol import Announced, Discovery, Instance, ServerSocket

__all__ = ["Announced", "Discovery", "Instance", "Local", "ServerSocket", "default_folder", "open_discovery"]

BACKENDS = {
    "local": "sparring.services.local_discovery:open_local",
    "consul": "sparring.services.consul_discovery:open_consul",
    "ray": "sparring.hosts.ray.discovery:open_ray",
}
VARIABLE = "SPARRING_DISCOVERY"


def open_discovery(url: str | None = None) -> Discovery:
    """The discovery behind a URL; without one, that of SPARRING_DISCOVERY, else `local://`."""
    url = url or os.environ.get(VARIABLE) or "local://"
    scheme, sign, _ = url.partition("://")
    if not sign or scheme not in BACKENDS:
        near = difflib.get_close_matches(urlsplit(url).scheme or scheme, BACKENDS, n=1)
        do = f"Did you mean {near[0]}://" if near else f"Use one of {', '.join(f'{name}://' for name in BACKENDS)}"
        raise ConfigError(f"{url!r} is no discovery", where="services.discovery", do=do)
    module, _, name = BACKENDS[scheme].partition(":")
    opened: Discovery = getattr(importlib.import_module(module), name)(url)
    return opened
