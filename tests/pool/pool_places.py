"""Where the contract's pools live: this process, a service in a process of its own, a real Redis."""

import itertools
from dataclasses import dataclass, field
from urllib.parse import urlencode

import redis as redis_py

from registry.small_models import small_model
from sparring.pool import open_pool
from sparring.pool.memory import serve_pool
from sparring.services.discovery import open_discovery
from sparring.services.solver import Solver
from sparring.wire.model import ONNX, WEIGHTS

MODEL_BYTES = 200_000
_names = (f"pool-{number}" for number in itertools.count())


def large_model(number):
    """A model whose weights go through shared memory, and differ from any other's in every byte."""
    return small_model(number, files={WEIGHTS: bytes([number % 256]) * MODEL_BYTES, ONNX: b"graph %d" % number})


@dataclass
class InProcess:
    """A dict of this process: each pool that is opened has its own."""

    environment: dict[str, str] = field(default_factory=dict)

    def url(self, max_bytes=1 << 30):
        return f"memory://?max_bytes={max_bytes}"

    def open(self, url, registry=None):
        return open_pool(url, registry)


@dataclass
class Service:
    """A service of a host; each URL has its own."""

    host: object
    solver: Solver

    def __init__(self, host):
        self.host, self.solver = host, Solver(open_discovery(host.discovery))
        self.environment = {"SPARRING_DISCOVERY": host.discovery}

    def url(self, max_bytes=1 << 30):
        url = f"memory://{next(_names)}?{urlencode({'max_bytes': max_bytes, 'cache_bytes': 0})}"
        serve_pool(self.host, url)
        return url

    def open(self, url, registry=None):
        return open_pool(url, registry, self.solver)


@dataclass
class Redis:
    """A server; each URL has a prefix of its own."""

    server: object
    environment: dict[str, str] = field(default_factory=dict)

    def url(self, max_bytes=0):
        options = {"prefix": f"{next(_names)}:", "max_bytes": max_bytes, "cache_bytes": 0}
        return f"{self.server.ready}/0?{urlencode(options)}"

    def open(self, url, registry=None):
        return open_pool(url, registry)

    def raw(self):
        """A connection past the pool."""
        return redis_py.Redis(port=int(self.server.ready.rpartition(":")[2]), protocol=2)
