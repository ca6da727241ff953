"""The store at scale: Apache Cassandra, or what speaks its protocol. One file per concern; `store.py` joins them."""
