"""redis://: entries as values of a Redis, each under PREFIX + the model's id.

Name and password come from REDIS_USERNAME and REDIS_PASSWORD in the environment, never from the URL. A call is over
after `timeout_s`, whatever happens to the server; a connection that broke is made again by the next call.

With `max_bytes` a writer removes what was longest unused, as Redis remembers it (to the second), until the values under
this prefix have so many bytes or fewer. Redis' own `maxmemory` may remove them too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sparring.errors import ConfigError, Refused, SparringError, StoreFailed, Unreachable
from sparring.pool.cached_pool import CACHE_BYTES, CachedPool
from sparring.pool.protocol import OPTIONS, SETTING, converted
from sparring.registry.registry import ID, Registry, place
from sparring.urls import read_url
from sparring.wire.ids import ModelId

if TYPE_CHECKING:
    from sparring.services.solver import Solver

PORT = 6379
MAX_ENTRY_BYTES = 512 << 20  # of one value; Redis takes no larger one
READ_BYTES = 1 << 20  # from a connection at once; a model of 1 MB takes 0.4 ms of CPU so, and 1.4 ms with 32 kB
_FORM = "redis://HOST:PORT/DATABASE"
_PLACE = r"(\[[0-9A-Fa-f:.]+\]|[^/:\[\]]+)(:\d{1,5})?(/\d{0,4})?"
_SECRETS = "REDIS_USERNAME and REDIS_PASSWORD"
_OPTIONS = {
    **OPTIONS,
    "prefix": (r"[A-Za-z0-9._:-]{1,80}", "up to 80 letters, digits, '.', '_', ':' and '-'"),
    "ca": (".+", "a PEM file"),
}
_AWAY = f"Start it, or correct {SETTING}; calls work again when it answers"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One database of one server, and what the URL's options say."""

    host: str
    port: int = PORT
    database: int = 0
    tls: bool = False
    prefix: str = "sparring:pool:"
    max_bytes: int = 0  # of all values under the prefix, as Redis counts them; 0: no limit but the server's
    cache_bytes: int = CACHE_BYTES  # of the models that a process has read
    timeout_s: float = 2.0  # to connect, and for an answer
    ca: str = ""  # with rediss://: PEM file of the authority that signed the server's certificate

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"

    @classmethod
    def read(cls, url: str) -> "RedisAddress":
        """The address in `url`; ConfigError with the right form where it is none."""
        parts, said = read_url(url, SETTING, _PLACE, _FORM, _SECRETS, _OPTIONS)
        try:
            port = parts.port or PORT
        except ValueError:
            raise ConfigError(f"{parts.netloc!r} names no port", where=SETTING, do="Use 1 to 65535") from None
        database, tls = int(parts.path.strip("/") or 0), parts.scheme == "rediss"
        return cls(parts.hostname or "", port, database, tls, **converted(said))


class RedisEntries:
    """Entries in a Redis; see `protocol.Entries`."""

    private = False

    def __init__(self, address: RedisAddress) -> None:
        """Unreachable or StoreFailed where the server does not answer, or refuses name and password."""
        self._address = address
        tls: dict[str, Any] = {"ssl": True, "ssl_ca_certs": address.ca or None} if address.tls else {}
        self._redis: Any = redis.Redis(  # its types know the answers of both protocols, and of futures
            address.host,
            address.port,
            address.database,
            username=os.environ.get("REDIS_USERNAME"),
            password=os.environ.get("REDIS_PASSWORD"),
            socket_timeout=address.timeout_s,
            socket_connect_timeout=address.timeout_s,
            socket_read_size=READ_BYTES,
            protocol=2,
            retry=Retry(NoBackoff(), 0),  # its own would wait for seconds; a connection that broke is made again anyway
            **tls,
        )
        try:
            with self._answers():
                self._redis.ping()
        except SparringError:
            self.close()
            raise

    def __str__(self) -> str:
        return str(self._address)

    def put(self, model: ModelId, entry: bytes) -> None:
        limit = min(self._address.max_bytes or MAX_ENTRY_BYTES, MAX_ENTRY_BYTES)
        if len(entry) > limit:
            wrong = f"it has {len(entry):,} bytes, and {self} takes {limit:,}"
            raise Refused(wrong, where=place(model), do=f"Raise max_bytes in {SETTING}, up to 512 MiB", limit=limit)
        with self._answers():
            self._redis.set(self._key(model), entry)
            if self._address.max_bytes:
                self._evict(model)

    def get(self, model: ModelId) -> bytes | None:
        with self._answers():
            found: bytes | None = self._redis.get(self._key(model))
            return found

    def ids(self) -> list[ModelId]:
        prefix = self._address.prefix
        with self._answers():
            keys = [key.decode(errors="replace") for key in self._redis.scan_iter(f"{prefix}*", count=1000)]
        return sorted(ModelId(name) for key in set(keys) if ID.match(name := key.removeprefix(prefix)))

    def drop(self, model: ModelId) -> None:
        with self._answers():
            self._redis.delete(self._key(model))

    def close(self) -> None:
        self._redis.close()

    def _key(self, model: ModelId) -> str:
        return self._address.prefix + model

    def _evict(self, newest: ModelId) -> None:
        """Remove the longest unused of the others until all fit. These questions do not count as use. Writers that do
        this at the same time may remove more than was necessary, which costs a reader a look into the registry."""
        there = self.ids()
        asked = self._redis.pipeline(transaction=False)
        for model in there:
            asked.object("idletime", self._key(model))
            asked.memory_usage(self._key(model))
        said = [one if isinstance(one, int) else 0 for one in asked.execute(raise_on_error=False)]
        idle_s, sizes = dict(zip(there, said[::2], strict=True)), dict(zip(there, said[1::2], strict=True))
        excess_bytes = sum(sizes.values()) - self._address.max_bytes
        for model in sorted(there, key=lambda one: -idle_s[one]):
            if excess_bytes > 0 and model != newest:
                self._redis.delete(self._key(model))
                excess_bytes -= sizes[model]

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Errors of the client as ours: what happened, to which server, and what to do."""
        try:
            yield
        except redis.AuthenticationError as error:
            wrong = f"{self} refused the name or password ({_short(error)})"
            raise StoreFailed(wrong, where=SETTING, do=f"Set {_SECRETS} in the environment") from None
        except redis.exceptions.OutOfMemoryError:
            do = f"Raise its maxmemory, set its maxmemory-policy to allkeys-lru, or set max_bytes in {SETTING}"
            raise StoreFailed(f"{self} is full", where=SETTING, do=do) from None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise Unreachable(f"{self} does not answer ({_short(error)})", where=SETTING, do=_AWAY) from None
        except redis.RedisError as error:
            wrong = f"{self} refused ({_short(error)})"
            raise StoreFailed(wrong, where=SETTING, do="See the server's settings and its log") from None


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200].rstrip(".")


def open_url(url: str, registry: Registry | None, solver: "Solver | None") -> CachedPool:
    """The pool at redis://… or rediss://…; see `open_pool`. It needs no solver."""
    address = RedisAddress.read(url)
    return CachedPool(RedisEntries(address), registry, address.cache_bytes)
