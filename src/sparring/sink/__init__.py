"""From the stream into the store: read, check, store, count. One process, or the same job on Spark."""
