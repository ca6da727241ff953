"""The store at scale: Apache Cassandra, or what speaks its protocol. One file per concern; `store.py` joins them."""

from sparring.store.cassandra.store import CassandraStore, open_url

__all__ = ["CassandraStore", "open_url"]
