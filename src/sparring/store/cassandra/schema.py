"""The keyspace: its tables, made by `spar store migrate`, and checked when a store is opened.

| table | partition | answers |
|---|---|---|
| chunks | game, day, bucket | a chunk, an episode, everything in the order of opening |
| chunks_by_arrival | game, day, bucket | what came since, without a body: counts and draws |
| chunks_by_player | game, mark | which seats are a player's: erasing, export |
| claims_by_episode | game, episode | who was first, where several write (lightweight transactions; kept for a day) |
| days, buckets | game; game, day | which partitions exist, and when one last changed |

The partition of an episode's rows follows from its id alone: `day` is the day that the UUIDv7 says, in UTC; `bucket` a
hash of the id, modulo the number of buckets that holds from that day on. That number may change for days to come, never
for one whose ids exist, so a retry always finds its row.
"""

import bisect
import logging
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cassandra.metadata import Murmur3Token

from sparring.errors import ConfigError, StoreFailed
from sparring.store.cassandra.session import CassandraAddress, CassandraSession, explained
from sparring.store.rows import COLUMNS, Row
from sparring.wire.ids import EpisodeId, GameId, opened_at_ms

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
BUCKETS = 64  # at 100 MB each: 6.4 GB of chunks per game and day
COPIES = 3
TABLE_WITHIN_S = 60.0
LOCK_SECONDS = 600  # a migration that died lets the next one in after this
AHEAD_DAYS = 3  # ids may be a day ahead, and writers look at the layout once an hour
MOST_BUCKETS = 4_096
RUN = "Run `spar store migrate`"

_VERSION = "SELECT version FROM schema_version WHERE name = 'tables'"
_LAYOUT = "SELECT from_day, buckets FROM layout WHERE name = 'chunks'"

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS schema_version (name text PRIMARY KEY, version int, changed_at_ms bigint)"

# Deleted rows leave the disks after four days and a compaction: tombstones are worth compacting for.
_FORGETS = """gc_grace_seconds = 345600 AND compaction = {'class': 'SizeTieredCompactionStrategy',
    'unchecked_tombstone_compaction': 'true', 'tombstone_threshold': '0.05', 'tombstone_compaction_interval': '3600'}"""
CLAIM_SECONDS = 86_400

_VERSION_1 = (
    "CREATE TABLE layout (name text, from_day int, buckets int, PRIMARY KEY (name, from_day))",
    f"""CREATE TABLE chunks (game text, day int, bucket int, episode text, seat int, first_step int,
        steps int, version text, spec text, player text, mark bigint, uploader text, actor text, source text,
        sample_rate double, ending text, outcome double, seed bigint, reward double, tick bigint,
        received_at_ms bigint, batch_id bigint, size_bytes int, content blob, stored blob, arrived bigint,
        header blob, body blob,
        PRIMARY KEY ((game, day, bucket), episode, seat, first_step)) WITH {_FORGETS}""",
    f"""CREATE TABLE chunks_by_arrival (game text, day int, bucket int, arrived bigint, episode text, seat int,
        first_step int, steps int, version text, source text, actor text, mark bigint, ending text,
        received_at_ms bigint, size_bytes int,
        PRIMARY KEY ((game, day, bucket), arrived, episode, seat, first_step)) WITH {_FORGETS}""",
    f"""CREATE TABLE chunks_by_player (game text, mark bigint, episode text, seat int,
        PRIMARY KEY ((game, mark), episode, seat)) WITH {_FORGETS}""",
    f"""CREATE TABLE claims_by_episode (game text, episode text, seat int, first_step int, revision int static,
        steps int, ending text, uploader text, content blob,
        PRIMARY KEY ((game, episode), seat, first_step)) WITH default_time_to_live = {CLAIM_SECONDS}""",
    "CREATE TABLE days (game text, day int, changed bigint, PRIMARY KEY (game, day))",
    "CREATE TABLE buckets (game text, day int, bucket int, changed bigint, PRIMARY KEY ((game, day), bucket))",
    "CREATE TABLE tombstones (game text, mark bigint, erased_at_ms bigint, PRIMARY KEY (game, mark))",
    "CREATE TABLE erasing (name text, game text, mark bigint, PRIMARY KEY (name, game, mark))",
    "CREATE TABLE removals (game text PRIMARY KEY, removed counter)",
    "CREATE TABLE facts (name text PRIMARY KEY, value text)",
    "CREATE TABLE ledger_days (name text, game text, day int, PRIMARY KEY (name, game, day))",
    """CREATE TABLE quarantine (game text, day int, arrived_ms bigint, shard text, position text, verdict text,
        reason text, field text, uploader text, episode text, seat int, first_step int, size_bytes int,
        PRIMARY KEY ((game, day), arrived_ms, shard, position))""",
    """CREATE TABLE minutes (game text, day int, minute_ms bigint, batch_id text, steps int, chunks int, players blob,
        ended int, returns double, lag_ms_sum bigint, lag_ms_max int,
        PRIMARY KEY ((game, day), minute_ms, batch_id))""",
)

MIGRATIONS = (_VERSION_1,)  # entry i leads from version i to i + 1; a released entry is never edited


class Partition(NamedTuple):
    """A partition of `chunks`."""

    game: GameId
    day: int  # since 1970-01-01
    bucket: int


class Stored(NamedTuple):
    """A row of `chunks`; header and body where they were asked for."""

    partition: Partition
    row: Row
    arrived: int  # microseconds by the writer's clock, rising: the order of receipt
    header: bytes | None = None
    body: bytes | None = None


SELECT_ROWS = f"SELECT {COLUMNS}, arrived FROM chunks WHERE game = ? AND day = ? AND bucket = ?"
SELECT_CHUNKS = SELECT_ROWS.replace("arrived FROM", "arrived, header, body FROM")


def stored(partition: Partition, found: tuple[Any, ...]) -> Stored:
    """A row that one of the SELECT statements above has found."""
    columns = len(Row._fields)
    return Stored(partition, Row(*found[:columns]), *found[columns:])


class BucketLayout:
    """How many buckets a day has."""

    def __init__(self, rows: Iterable[tuple[int, int]]) -> None:
        """`rows` are (first day, buckets from then on)."""
        self.rows = sorted(rows)
        self._days = [day for day, _ in self.rows]

    def buckets(self, day: int) -> int:
        at = bisect.bisect_right(self._days, day) - 1
        return self.rows[max(at, 0)][1]

    def partition(self, game: GameId, episode: EpisodeId) -> Partition:
        day = opened_at_ms(episode) // DAY_MS
        return Partition(game, day, zlib.crc32(episode.encode()) % self.buckets(day))


def in_part(partition: Partition, part: int, of: int) -> bool:
    """Whether a partition's token is in the `part`-th of `of` equal ranges of all tokens."""
    return of == 1 or (token(partition) + (1 << 63)) * of >> 64 == part


def token(partition: Partition) -> int:
    """The token by which Cassandra places the partition."""
    packed = (partition.game.encode(), struct.pack(">i", partition.day), struct.pack(">i", partition.bucket))
    key = b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in packed)
    found: int = Murmur3Token.hash_fn(key)
    return found


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
        wrong = f"{copies} copies on {near} node{'s' * (near != 1)} of data centre {centre!r}"
        raise ConfigError(wrong, where="--replication", do="Start more nodes, or choose fewer copies")
    spread = f"{{'class': 'NetworkTopologyStrategy', '{centre}': {copies}}}"
    _define(session, f"CREATE KEYSPACE IF NOT EXISTS {name} WITH replication = {spread}")
    return copies


def _alone(session: CassandraSession) -> None:
    """Tables made by two at once may come to differ from node to node."""
    claim = "INSERT INTO schema_version (name, version) VALUES ('migration', 1) IF NOT EXISTS USING TTL ?"
    if not session.one(session.once(claim, (LOCK_SECONDS,)))[0][0]:
        do = f"Wait for it; one that died lets you in after {LOCK_SECONDS // 60} minutes"
        raise StoreFailed("another migration is under way", where=session.where, do=do)


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
