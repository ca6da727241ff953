"""Making the keyspace and bringing it to this version; checking it when a store is opened; describing it."""

import logging
from dataclasses import dataclass

from sparring.errors import ConfigError, StoreFailed
from sparring.store.cassandra.errors import explained
from sparring.store.cassandra.partitions import BUCKETS, DAY_MS, BucketLayout
from sparring.store.cassandra.session import CassandraSession
from sparring.store.cassandra.tables import MIGRATIONS, VERSION_TABLE
from sparring.store.cassandra.url import CassandraAddress

log = logging.getLogger(__name__)

COPIES = 3
TABLE_WITHIN_S = 60.0
LOCK_SECONDS = 600  # a migration that died lets the next one in after this
AHEAD_DAYS = 3  # ids may be a day ahead, and writers look at the layout once an hour
MOST_BUCKETS = 4_096
RUN = "Run `spar store migrate`"

_VERSION = "SELECT version FROM schema_version WHERE name = 'tables'"
_LAYOUT = "SELECT from_day, buckets FROM layout WHERE name = 'chunks'"


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did."""

    keyspace: str
    made: bool
    replication: int
    before: int
    version: int
    buckets: int  # a day, from now on or from `from_day` on
    from_day: int | None


def version_of(session: CassandraSession) -> int:
    """The version of the tables in the keyspace; 0 where there are none."""
    tables = session.cluster.metadata.keyspaces[session.address.keyspace].tables
    if "schema_version" not in tables:
        if tables:
            wrong = (
                f"keyspace {session.address.keyspace!r} is another program's: it has {', '.join(sorted(tables)[:3])}"
            )
            raise StoreFailed(wrong, where=session.where, do="Name another keyspace in [store] url")
        return 0
    found = session.one(session.look(_VERSION))
    return int(found[0][0]) if found else 0


def check(session: CassandraSession) -> None:
    """StoreFailed unless the tables are this version's."""
    version = version_of(session)
    if version > len(MIGRATIONS):
        wrong = f"its tables have version {version}, this Sparring reads up to {len(MIGRATIONS)}"
        raise StoreFailed(wrong, where=session.where, do="Use the Sparring that made them, or a newer one")
    if version < len(MIGRATIONS):
        wrong = f"its tables have version {version} of {len(MIGRATIONS)}" if version else "it has no tables yet"
        raise StoreFailed(wrong, where=session.where, do=RUN)


def layout_of(session: CassandraSession) -> BucketLayout:
    """How many buckets each day has."""
    return BucketLayout((day, buckets) for day, buckets in session.one(session.look(_LAYOUT)))


def migrate(address: CassandraAddress, *, replication: int, buckets: int, now_ms: int) -> Migrated:
    """Make what is missing. `replication` and `buckets` 0 leave them as they are, or at their defaults."""
    if not 0 <= buckets <= MOST_BUCKETS:
        raise ConfigError(f"{buckets} buckets", where="--buckets", do=f"Choose 1 to {MOST_BUCKETS}")
    session = CassandraSession(address, keyspace=False)
    try:
        made = address.keyspace not in session.cluster.metadata.keyspaces
        copies = _keyspace(session, replication or address.replication)
        with explained(session.where):
            session.driver.set_keyspace(address.keyspace)
        before = version_of(session)
        if before > len(MIGRATIONS):
            check(session)
        _define(session, VERSION_TABLE)
        _alone(session)
        try:
            _tables(session, before, now_ms)
            from_day = _buckets(session, buckets, now_ms)
        finally:
            session.one(session.write("DELETE FROM schema_version WHERE name = 'migration'"))
        chosen = layout_of(session).rows[-1][1]
        return Migrated(address.keyspace, made, copies, before, len(MIGRATIONS), chosen, from_day)
    finally:
        session.close()


def replication_of(session: CassandraSession) -> dict[str, int]:
    """Copies in each data centre."""
    strategy = session.cluster.metadata.keyspaces[session.address.keyspace].replication_strategy
    by_centre = getattr(strategy, "dc_replication_factors", None)
    if by_centre:
        return {name: int(str(copies)) for name, copies in by_centre.items()}
    return {"": int(str(getattr(strategy, "replication_factor", 0)))}


def _keyspace(session: CassandraSession, wanted: int) -> int:
    name = session.address.keyspace
    if name in session.cluster.metadata.keyspaces:
        held = sum(replication_of(session).values())
        if wanted and wanted != held:
            log.warning("keyspace %s keeps its replication of %d: change it with ALTER KEYSPACE and repair", name, held)
        return held
    nodes = [host for host in session.cluster.metadata.all_hosts() if host.is_up is not False]
    centre = session.address.local_dc or nodes[0].datacenter
    near = sum(host.datacenter == centre for host in nodes)
    copies = wanted or min(COPIES, near)
    if copies > near:
        raise ConfigError(
            f"{copies} copies on {near} node{'s' * (near != 1)} of data centre {centre!r}",
            where="--replication",
            do="Start more nodes, or choose fewer copies",
        )
    spread = f"{{'class': 'NetworkTopologyStrategy', '{centre}': {copies}}}"
    _define(session, f"CREATE KEYSPACE IF NOT EXISTS {name} WITH replication = {spread}")
    return copies


def _alone(session: CassandraSession) -> None:
    """Tables made by two at once may come to differ from node to node."""
    claim = "INSERT INTO schema_version (name, version) VALUES ('migration', 1) IF NOT EXISTS USING TTL ?"
    if not session.one(session.once(claim, (LOCK_SECONDS,)))[0][0]:
        raise StoreFailed(
            "another migration is under way",
            where=session.where,
            do=f"Wait for it; one that died lets you in after {LOCK_SECONDS // 60} minutes",
        )


def _tables(session: CassandraSession, before: int, now_ms: int) -> None:
    for step in range(before, len(MIGRATIONS)):
        for statement in MIGRATIONS[step]:
            _define(session, statement.replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1))
        if step == 0:
            session.one(
                session.write("INSERT INTO layout (name, from_day, buckets) VALUES ('chunks', 0, ?)", (BUCKETS,))
            )
        done = "INSERT INTO schema_version (name, version, changed_at_ms) VALUES ('tables', ?, ?)"
        session.one(session.write(done, (step + 1, now_ms)))


def _buckets(session: CassandraSession, wanted: int, now_ms: int) -> int | None:
    """Set the number of buckets: from the beginning in an empty store, from a few days ahead otherwise."""
    layout = layout_of(session)
    if not wanted or layout.rows[-1][1] == wanted:
        return None
    empty = not session.one(session.look("SELECT game FROM days LIMIT 1"))
    from_day = 0 if empty else now_ms // DAY_MS + AHEAD_DAYS
    session.one(
        session.write("INSERT INTO layout (name, from_day, buckets) VALUES ('chunks', ?, ?)", (from_day, wanted))
    )
    return from_day or None


def _define(session: CassandraSession, cql: str) -> None:
    with explained(session.where):
        session.driver.execute(cql, timeout=TABLE_WITHIN_S)
