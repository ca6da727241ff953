"""Keyspaces of the tests: made with their tables, and emptied between tests."""

import time

from sparring.store.cassandra import schema
from sparring.store.cassandra.session import CassandraAddress, CassandraSession


def migrated(url: str, **settings: int) -> str:
    """The URL, once its tables are there."""
    chosen = {"replication": 0, "buckets": 0, **settings}
    schema.migrate(CassandraAddress.read(url), now_ms=int(time.time() * 1000), **chosen)
    return url


def emptied(url: str) -> None:
    """No row of an earlier test is left."""
    session = CassandraSession(CassandraAddress.read(url))
    try:
        tables = session.cluster.metadata.keyspaces[session.address.keyspace].tables
        # All of them: a table that looks empty may be full of deletions, some of them a day ahead.
        jobs = [
            session.driver.execute_async(f"TRUNCATE {table}", timeout=60)
            for table in sorted(tables.keys() - {"schema_version", "layout"})
        ]
        for job in jobs:
            job.result()
    finally:
        session.close()
