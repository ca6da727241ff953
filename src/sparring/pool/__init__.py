"""The hot weights of a league's members: read often, by many processes, from memory instead of the registry."""

from sparring.pool.protocol import Pool, open_pool

__all__ = ["Pool", "open_pool"]
