"""A cluster: its address, a connection to it, and what its errors mean for an operator.

cassandra://HOST,HOST:PORT/KEYSPACE?… says where a store is, and how many replicas must answer. A session is
token-aware, prepares each statement once, and sends only what is idempotent twice.
"""

import logging
import os
import re
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import cassandra
from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ConnectionException
from cassandra.policies import DCAwareRoundRobinPolicy, RetryPolicy, TokenAwarePolicy
from cassandra.query import BatchStatement, BatchType, BoundStatement, PreparedStatement, tuple_factory

from sparring.errors import ConfigError, SparringError, StoreFailed, StoreRefused, Unreachable
from sparring.urls import read_url

PORT = 9042
OPEN_WITHIN_S = 8.0  # for all hosts of the URL together
AT_ONCE = 64  # statements under way
TRIES = 3
PROTOCOL = 4  # Cassandra 3 to 5 and Amazon Keyspaces speak it
SETTING = "[store] url"

_FORM = "cassandra://HOST,HOST:PORT/KEYSPACE (small letters, digits and _, up to 48)"
_SECRETS = "CASSANDRA_USERNAME and CASSANDRA_PASSWORD"
_LEVELS = ("one", "two", "three", "quorum", "all", "local_quorum", "each_quorum", "local_one")
_CONSISTENCY = "|".join(_LEVELS), f"one of {', '.join(_LEVELS)}"
_OPTIONS = {
    "consistency": _CONSISTENCY,
    "read_consistency": _CONSISTENCY,
    "local_dc": (".*", "a data centre"),
    "replication": ("[1-9]", "1 to 9 copies"),
    "timeout_s": (r"(?=.*[1-9])\d{1,3}(\.\d+)?", "seconds, above 0 and below 1000"),
    "tls": (".*", "true or false"),
    "ca": (".*", "a PEM file"),
}
_CONVERTED: dict[str, Callable[[str], Any]] = {
    "consistency": str.lower,
    "read_consistency": str.lower,
    "replication": int,
    "timeout_s": float,
    "tls": lambda value: value.lower() in ("1", "true", "yes", "on"),
}

Row = tuple[Any, ...]
Item = TypeVar("Item")

ERRORS = (cassandra.DriverException, NoHostAvailable, ConnectionException)
# The same request may succeed later.
LATER = (cassandra.Unavailable, cassandra.Timeout, cassandra.CoordinationFailure, cassandra.OperationTimedOut)
_KEYS = f"Set {_SECRETS} in the environment"
_NODES = "Check that the nodes run and that [store] url names them and their port"
_AGAIN = "Try again; if it stays, see which nodes are down. Sending a chunk twice is harmless"


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
        parts, said = read_url(url, SETTING, "[^/]+/[a-z][a-z0-9_]{0,47}/?", _FORM, _SECRETS, _OPTIONS)
        ports = set(re.findall(r":([^,]*)", parts.netloc)) or {str(PORT)}
        if len(ports) > 1 or not all(port.isdigit() and 0 < int(port) < 65536 for port in ports):
            do = "All nodes of a cluster answer on the same: name it once"
            raise ConfigError(f"{', '.join(sorted(ports))} is not one port", where=SETTING, do=do)
        hosts = tuple(one.partition(":")[0] for one in parts.netloc.split(",") if one)
        made = {name: _CONVERTED.get(name, str)(value) for name, value in said.items()}
        return cls(hosts, int(ports.pop()), parts.path.strip("/"), **made)


def explain(error: Exception, where: str, *, values: bool = False) -> SparringError:
    """The error as a sentence; `values`: the statement is known to be right, so a refusal is one of its values."""
    if isinstance(error, NoHostAvailable):
        return _no_host(error, where)
    if isinstance(error, cassandra.UnresolvableContactPoints):
        return Unreachable("no host of this name is known", where=where, do=_NODES)
    if isinstance(error, cassandra.AuthenticationFailed):
        return StoreFailed("Cassandra refused the name or password", where=where, do=_KEYS)
    if isinstance(error, cassandra.Unauthorized):
        wrong, do = f"this user may not do that ({_short(error)})", "Grant it the keyspace's permissions"
        return StoreFailed(wrong, where=where, do=do)
    if isinstance(error, (*LATER, ConnectionException)):
        return Unreachable(f"too few replicas answered in time ({_short(error)})", where=where, do=_AGAIN)
    if values and isinstance(error, cassandra.InvalidRequest):
        do = "Correct the limit or the index that it names, or send smaller chunks"
        return StoreRefused(f"Cassandra will not take it ({_short(error)})", where=where, do=do)
    return StoreFailed(f"Cassandra refused ({_short(error)})", where=where, do="Report this with the text above")


def _no_host(error: NoHostAvailable, where: str) -> SparringError:
    reasons = list(error.errors.values()) if isinstance(error.errors, dict) else []
    if any(isinstance(one, cassandra.AuthenticationFailed) or "auth" in str(one).lower() for one in reasons):
        return StoreFailed("Cassandra wants a name and password, or refused them", where=where, do=_KEYS)
    for one in reasons:
        if isinstance(one, LATER) and not isinstance(one, cassandra.OperationTimedOut):  # which: no answer at all
            return explain(one, where)
    why = f" ({_short(reasons[0])})" if reasons and isinstance(reasons[0], Exception) else ""
    return Unreachable(f"no node answers{why}", where=where, do=_NODES)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]


@contextmanager
def explained(where: str, *, values: bool = False) -> Iterator[None]:
    """Turns what the driver raises inside the block into a sentence."""
    try:
        yield
    except ERRORS as error:
        raise explain(error, where, values=values) from error


class RetryIdempotent(RetryPolicy):  # type: ignore[misc]  # the driver has no types
    """Another node is asked, a few times, for a statement that may run twice; anything else fails at once."""

    def _again(self, query: Any, *_: Any, retry_num: int, **__: Any) -> tuple[int, None]:
        again = getattr(query, "is_idempotent", False) and retry_num < TRIES
        return (self.RETRY_NEXT_HOST if again else self.RETHROW), None

    on_read_timeout = on_write_timeout = on_unavailable = on_request_error = _again


def hundreds(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The items in groups of a hundred: as many rows as one statement or batch should name."""
    return [items[at : at + 100] for at in range(0, len(items), 100)]


class CassandraSession:
    """One session. Safe to use from several threads; a process that forks opens its own."""

    def __init__(self, address: CassandraAddress, *, keyspace: bool = True) -> None:
        """`keyspace` False: nothing is in it yet, `spar store migrate` is about to make it."""
        self.address, self.where = address, str(address)
        self._write = _level(address.consistency)
        self._read = _level(address.read_consistency)
        self._prepared: dict[str, PreparedStatement] = {}
        self._preparing = threading.Lock()
        self.closed = False
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)  # its errors are raised here as sentences
        self.cluster = _cluster(address)
        try:
            with explained(self.where):
                self.driver: Session = self.cluster.connect()
                if keyspace and address.keyspace not in self.cluster.metadata.keyspaces:
                    wrong = f"there is no keyspace {address.keyspace!r}"
                    raise StoreFailed(wrong, where=self.where, do="Run `spar store migrate`")
                if keyspace:
                    self.driver.set_keyspace(address.keyspace)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self.closed = True
        self.cluster.shutdown()

    def write(self, cql: str, values: Sequence[Any] = ()) -> BoundStatement:
        """A statement that changes rows and may run twice."""
        return self._bound(cql, values, self._write, idempotent=True)

    def once(self, cql: str, values: Sequence[Any] = ()) -> BoundStatement:
        """A statement that is not sent again when its fate is unknown."""
        return self._bound(cql, values, self._write, idempotent=False)

    def look(self, cql: str, values: Sequence[Any] = ()) -> BoundStatement:
        """A read that decides about a write: it sees every write that was acknowledged."""
        return self._bound(cql, values, self._write, idempotent=True)

    def scan(self, cql: str, values: Sequence[Any] = ()) -> BoundStatement:
        """A read for training, statistics and export."""
        return self._bound(cql, values, self._read, idempotent=True)

    def batch(self, statements: Iterable[BoundStatement], *, conditional: bool = False) -> BatchStatement:
        """Statements on one partition, so that a replica applies all or none of them."""
        together = BatchStatement(BatchType.UNLOGGED, consistency_level=self._write)
        for one in statements:
            together.add(one)
        together.is_idempotent = not conditional
        if conditional:
            together.serial_consistency_level = ConsistencyLevel.LOCAL_SERIAL
        return together

    def all(self, statements: Iterable[Any], at_once: int = AT_ONCE) -> list[list[Row]]:
        """Run them side by side; the rows of each, in their order. Raises the first failure as a sentence."""
        self.check_open()
        found: list[list[Row]] = []
        pending: deque[Any] = deque()
        with explained(self.where, values=True):
            for one in statements:
                pending.append(self.driver.execute_async(one))
                if len(pending) >= at_once:
                    found.append(list(pending.popleft().result()))
            found += [list(future.result()) for future in pending]
        return found

    def one(self, statement: Any) -> list[Row]:
        """Run it; its rows."""
        return self.all([statement])[0]

    def pages(self, statement: BoundStatement, first: int, most: int, page_bytes: int = 1 << 20) -> Iterator[Row]:
        """Rows page by page; the first is asked for at once, each next one while the last is used. Pages grow
        from `first` rows to `most`, but not above some `page_bytes`, as far as the last page tells.
        """
        self.check_open()
        statement.fetch_size = first
        with explained(self.where):
            future = self.driver.execute_async(statement)
        return self._rest(statement, future, most, page_bytes)

    def _rest(self, statement: BoundStatement, future: Any, most: int, page_bytes: int) -> Iterator[Row]:
        while True:
            with explained(self.where):
                result = future.result()
                rows, state = result.current_rows, result.paging_state
                if state is not None:
                    statement.fetch_size = _next_size(rows, statement.fetch_size, most, page_bytes)
                    future = self.driver.execute_async(statement, paging_state=state)
            yield from rows
            if state is None:
                return

    def check_open(self) -> None:
        if self.closed:
            raise StoreFailed("the store is closed", where=self.where, do="Open it again")

    def _bound(self, cql: str, values: Sequence[Any], level: int, *, idempotent: bool) -> BoundStatement:
        self.check_open()
        statement = self._prepared.get(cql)
        if statement is None:
            with self._preparing, explained(self.where):
                statement = self._prepared.get(cql) or self.driver.prepare(cql)
                self._prepared[cql] = statement
        try:
            bound = statement.bind(values)
        except TypeError as error:  # of a column, by the driver: it names the column and what it takes
            do = "Send what Cassandra has room for"
            raise StoreRefused(f"a value does not fit ({error})", where=self.where, do=do) from None
        bound.consistency_level, bound.is_idempotent = level, idempotent
        return bound


def _next_size(rows: Sequence[Row], size: int, most: int, page_bytes: int) -> int:
    held = sum(len(cell) for row in rows for cell in row if isinstance(cell, bytes))
    fits = page_bytes * max(1, len(rows)) // max(1, held)
    return max(1, min(most, 4 * size, fits))


def _cluster(address: CassandraAddress) -> Cluster:
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(address.local_dc)),
        retry_policy=RetryIdempotent(),
        row_factory=tuple_factory,
        request_timeout=address.timeout_s,
        consistency_level=_level(address.consistency),
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
    )
    name, password = os.environ.get("CASSANDRA_USERNAME"), os.environ.get("CASSANDRA_PASSWORD")
    patience_s = OPEN_WITHIN_S / max(2, len(address.hosts))
    with explained(str(address)):
        return Cluster(
            list(address.hosts),
            port=address.port,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            auth_provider=PlainTextAuthProvider(name, password) if name and password else None,
            ssl_context=_tls(address),
            protocol_version=PROTOCOL,
            connect_timeout=patience_s,
            control_connection_timeout=patience_s,
            idle_heartbeat_interval=10,
        )


def _tls(address: CassandraAddress) -> ssl.SSLContext | None:
    if not (address.tls or address.ca):
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
    except OSError as error:
        raise ConfigError(f"ca={address.ca!r}: {error}", where=SETTING, do="Name a readable PEM file") from None
    context.check_hostname = False  # nodes are met by address; what is checked is who signed their certificate
    return context


def _level(name: str) -> int:
    level: int = getattr(ConsistencyLevel, name.upper())
    return level
