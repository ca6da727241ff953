"""Replay as a learner uses it: a table in its own process, or shards in services."""
