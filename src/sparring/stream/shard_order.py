"""Shards as a family: parents before children, and who may be read when. Decides without I/O."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from sparring.stream.protocol import Shard


def in_order(shards: Iterable[Shard]) -> list[Shard]:
    """Parents before children, otherwise by name. A parent that retention has removed is forgotten."""
    known = {shard.id: shard for shard in sorted(shards, key=lambda shard: shard.id)}
    ordered: dict[str, Shard] = {}
    for _ in known:  # a family is at most as deep as it is large
        for shard in known.values():
            parents = tuple(parent for parent in shard.parents if parent in known)
            if shard.id not in ordered and all(parent in ordered for parent in parents):
                ordered[shard.id] = replace(shard, parents=parents)
    return list(ordered.values())


def readable(shards: Iterable[Shard], ended: Collection[str]) -> list[Shard]:
    """Those to be read now: not at their end, and every parent at its own. So an episode's order outlives a reshard."""
    return [shard for shard in shards if shard.id not in ended and all(parent in ended for parent in shard.parents)]
