"""Reading a store in parallel: tasks on a Ray cluster, each of which reads its own part of the episodes.

The result does not depend on the number of tasks: chunks are sorted by time of receipt, then by key, so a seed learns
the same from any number of readers. Ray is imported only when something is read.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.errors import ConfigError, Missing, StoreFailed
from sparring.store import open_store
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk, decode, encode

if TYPE_CHECKING:
    from sparring.hosts.ray.cluster import Cluster

LOCAL = "ray://local"
PART_STEPS = 50_000  # about; a task holds its part in memory
PARTS = (2, 64)  # at least, at most


class ParallelStore:
    """The store at `url`. A whole query is read by tasks on the cluster `on`; all else goes to the store itself."""

    def __init__(self, store: Store, url: str, on: str) -> None:
        self._store, self.url, self.on = store, url, on if on.startswith("ray:") else LOCAL

    def read(self, query: Query, *, part: int = 0, of: int = 1) -> Iterator[Chunk]:
        """The query's chunks. Each call connects to Ray and disconnects after the last chunk."""
        if of > 1:
            yield from self._store.read(query, part=part, of=of)
            return
        from sparring.hosts.ray.cluster import Cluster

        cluster = Cluster(self.on)
        try:
            require_node(cluster)
            yield from read_in_parallel(self._store, self.url, query)
        finally:
            cluster.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def require_node(cluster: "Cluster") -> None:
    """ConfigError where this process is not on a node of the cluster: RLlib must be."""
    if cluster.remote:
        raise ConfigError(
            "RLlib and readers of the store run on a node of the cluster, and this port is for clients outside of it",
            where="--on",
            do="Start it on a node, with ray://auto or ray://HOST:6379 (`spar cluster submit` does)",
        )


def read_in_parallel(store: Store, url: str, query: Query, parts: int = 0) -> Iterator[Chunk]:
    """Every chunk of the query, read by Ray's processes, in an order that does not depend on how many they are.

    `parts` 0: one for each PART_STEPS of the game, within PARTS.
    """
    import ray
    from ray.exceptions import RayError

    least, most = PARTS
    count = parts or min(most, max(least, math.ceil(store.stats(query.game).steps / PART_STEPS)))
    read = ray.remote(_read_part)
    try:
        encoded = ray.get([read.remote(url, query, part, count) for part in range(count)])
    except RayError as error:
        lines = str(getattr(error, "cause", None) or error).strip().splitlines()
        raise StoreFailed(
            f"a reader on Ray failed: {lines[-1] if lines else type(error).__name__}",
            where=url.partition("?")[0],
            do="Let every node reach the store by this URL, or leave --on out",
        ) from None

    def order(chunk: Chunk) -> tuple[Any, ...]:
        header = chunk.header
        return header.received_at_ms, header.game, header.episode, header.seat, header.first_step

    yield from sorted((decode(chunk) for chunks in encoded for chunk in chunks), key=order)


def _read_part(url: str, query: Query, part: int, of: int) -> list[bytes]:
    """Runs in a process of Ray's."""
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise Missing("this node has no such file", where=url, do="Use a store that every node reaches")
    # The learner has checked the file when it opened it; without this each reader would check all of it again.
    with open_store(url, **({"check": False} if url.startswith("sqlite:") else {})) as store:
        return [encode(chunk) for chunk in store.read(query, part=part, of=of)]
