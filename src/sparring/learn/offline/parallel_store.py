"""A store whose whole reading is shared out among the processes of a Ray cluster; everything else it does itself."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparring.errors import ConfigError
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk

if TYPE_CHECKING:
    from sparring.hosts.ray.cluster import Cluster

LOCAL = "ray://local"


class SharedReading:
    """The store at `url`, read through Ray Data on `on` where all of a query is asked for.

    Ray is joined for each such reading and left after it.
    """

    def __init__(self, store: Store, url: str, on: str) -> None:
        self._store, self.url, self.on = store, url, on if on.startswith("ray:") else LOCAL

    def read(self, query: Query, *, part: int = 0, of: int = 1) -> Iterator[Chunk]:
        if of > 1:
            yield from self._store.read(query, part=part, of=of)
            return
        from sparring.hosts.ray.cluster import Cluster

        cluster = Cluster(self.on)
        try:
            as_a_node(cluster)
            from sparring.learn.offline.ray_data import read_in_parallel

            yield from read_in_parallel(self._store, self.url, query)
        finally:
            cluster.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def as_a_node(cluster: "Cluster") -> None:
    """ConfigError where this process is no node of the cluster: RLlib and Ray Data want to be one."""
    if cluster.remote:
        raise ConfigError(
            "RLlib and Ray Data run on a node of the cluster, and this port is for those who are none",
            where="--on",
            do="Start it on a node, with ray://auto or ray://HOST:6379 (`spar cluster submit` does)",
        )


def shares_reading(source: str, topology: str, on: str) -> bool:
    """Whether a run's records come through Ray Data: RLlib's always, ours on a Ray cluster."""
    return source == "store" and (topology == "rllib" or on.startswith("ray:"))
