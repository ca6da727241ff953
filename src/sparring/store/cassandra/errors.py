"""What Cassandra's complaints mean for the person who must act on them."""

from collections.abc import Iterator
from contextlib import contextmanager

from cassandra import (
    AuthenticationFailed,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    RequestExecutionException,
    Timeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
    WriteTimeout,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException

from sparring.errors import SparringError, StoreFailed, StoreRefused, Unreachable

FAULTS = (
    NoHostAvailable,
    UnresolvableContactPoints,
    AuthenticationFailed,
    OperationTimedOut,
    Unauthorized,
    InvalidRequest,
    RequestExecutionException,
    ConnectionException,
)
LATER = (Unavailable, Timeout, ReadTimeout, WriteTimeout, OperationTimedOut, ReadFailure, WriteFailure)
_KEYS = "Set CASSANDRA_USERNAME and CASSANDRA_PASSWORD in the environment"
_NODES = "Check that the nodes run and that [store] url names them and their port"


def failed(error: Exception, where: str, *, given: bool = False) -> SparringError:
    """The same fault as a sentence; `given` where a statement that was understood before came with values."""
    if isinstance(error, NoHostAvailable):
        return _no_host(error, where)
    if isinstance(error, UnresolvableContactPoints):
        return Unreachable("no host of this name is known", where=where, do=_NODES)
    if isinstance(error, AuthenticationFailed):
        return StoreFailed("Cassandra refused the name or password", where=where, do=_KEYS)
    if isinstance(error, Unauthorized):
        return StoreFailed(
            f"this user may not do that ({_short(error)})", where=where, do="Grant it the keyspace's permissions"
        )
    if isinstance(error, (*LATER, ConnectionException)):
        return Unreachable(
            f"too few replicas answered in time ({_short(error)})",
            where=where,
            do="Try again; if it stays, see which nodes are down. Sending a chunk twice is harmless",
        )
    if given and isinstance(error, InvalidRequest):
        do = "Mend the limit or the index that it names, or send smaller chunks"
        return StoreRefused(f"Cassandra will not take it ({_short(error)})", where=where, do=do)
    return StoreFailed(f"Cassandra refused ({_short(error)})", where=where, do="Report this with the text above")


def _no_host(error: NoHostAvailable, where: str) -> SparringError:
    reasons = list(error.errors.values()) if isinstance(error.errors, dict) else []
    refused = [one for one in reasons if isinstance(one, AuthenticationFailed)]
    if refused or any("auth" in str(one).lower() for one in reasons):
        return StoreFailed("Cassandra wants a name and password, or refused them", where=where, do=_KEYS)
    for one in reasons:
        if isinstance(one, LATER) and not isinstance(one, OperationTimedOut):  # that: nothing was heard at all
            return failed(one, where)
    why = f" ({_short(reasons[0])})" if reasons and isinstance(reasons[0], Exception) else ""
    return Unreachable(f"no node answers{why}", where=where, do=_NODES)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]


@contextmanager
def explained(where: str, *, given: bool = False) -> Iterator[None]:
    """Turns whatever the driver raises inside into a sentence; `given`: a refusal is one of the values."""
    try:
        yield
    except FAULTS as error:
        raise failed(error, where, given=given) from error
