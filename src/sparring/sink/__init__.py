"""From the stream into the store: read, judge, keep, count. One process, or the same job on Spark."""
