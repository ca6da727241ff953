"""What the errors of Cassandra and its driver mean for an operator."""

from collections.abc import Iterator
from contextlib import contextmanager

import cassandra
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException

from sparring.errors import SparringError, StoreFailed, StoreRefused, Unreachable

ERRORS = (cassandra.DriverException, NoHostAvailable, ConnectionException)
# The same request may succeed later.
LATER = (cassandra.Unavailable, cassandra.Timeout, cassandra.CoordinationFailure, cassandra.OperationTimedOut)
_KEYS = "Set CASSANDRA_USERNAME and CASSANDRA_PASSWORD in the environment"
_NODES = "Check that the nodes run and that [store] url names them and their port"
_AGAIN = "Try again; if it stays, see which nodes are down. Sending a chunk twice is harmless"


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
        do = "Mend the limit or the index that it names, or send smaller chunks"
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
