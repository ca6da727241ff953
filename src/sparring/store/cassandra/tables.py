"""The keyspace: its tables, one for each question asked of it, and the versions that led there. No I/O.

| table | partition | answers |
|---|---|---|
| chunks | game, day, bucket | a chunk, an episode, everything in the order of opening |
| chunks_by_arrival | game, day, bucket | what came since, without a body: counts and draws |
| chunks_by_player | game, mark | which seats are a player's: erasing, export |
| claims_by_episode | game, episode | who was first, where several write (lightweight transactions; kept for a day) |
| days, buckets | game; game, day | which partitions exist, and when one last changed |
"""

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
        received_at_ms bigint, size_bytes int, content blob, stored blob, arrived bigint, header blob, body blob,
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
    "CREATE TABLE ledger_days (name text, game text, day int, PRIMARY KEY (name, game, day))",
    """CREATE TABLE quarantine (game text, day int, arrived_ms bigint, shard text, position text, verdict text,
        reason text, field text, uploader text, episode text, seat int, first_step int, size_bytes int,
        PRIMARY KEY ((game, day), arrived_ms, shard, position))""",
    """CREATE TABLE minutes (game text, day int, minute_ms bigint, batch_id text, steps int, chunks int, players blob,
        ended int, returns double, lag_ms_sum bigint, lag_ms_max int,
        PRIMARY KEY ((game, day), minute_ms, batch_id))""",
)

MIGRATIONS = (_VERSION_1,)  # entry i leads from version i to i + 1; a released entry is never edited
