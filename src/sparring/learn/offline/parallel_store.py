"""Reading a store in parallel through Ray Data: `parts` tasks on a Ray cluster, each of which reads its own episodes.

The result does not depend on the number of tasks: chunks are sorted by time of receipt, then by key, so a seed learns
the same from any number of readers. Ray is imported only when something is read.
"""

import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sparring.errors import ConfigError, Missing, StoreFailed
from sparring.store import open_store
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk, Header, encode_parts
from sparring.wire.tree import pack, unpack

if TYPE_CHECKING:
    from sparring.hosts.ray.cluster import Cluster

LOCAL = "ray://local"
PART_STEPS = 50_000  # about; a task holds its part in memory
PARTS = (2, 64)  # at least, at most
BLOCK_CHUNKS = 64

Blocks = Callable[[Iterator[Chunk]], Iterator[Any]]  # makes blocks of Ray Data from the chunks of one part


class ParallelStore:
    """The store at `url`. A whole query is read through Ray Data on `on`; everything else goes to the store itself."""

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


def parallel_store(store: Store, url: str, on: str) -> Store:
    """The store, read in parallel on the Ray cluster `on`, or on a Ray of this machine."""
    return cast(Store, ParallelStore(store, url, on))


def require_node(cluster: "Cluster") -> None:
    """ConfigError where this process is not on a node of the cluster: RLlib and Ray Data must be."""
    if cluster.remote:
        raise ConfigError(
            "RLlib and Ray Data run on a node of the cluster, and this port is for clients outside of it",
            where="--on",
            do="Start it on a node, with ray://auto or ray://HOST:6379 (`spar cluster submit` does)",
        )


def read_in_parallel(store: Store, url: str, query: Query, parts: int = 0) -> Iterator[Chunk]:
    """Every chunk of the query, read by Ray's processes, in an order that does not depend on how many they are."""

    def order(chunk: Chunk) -> tuple[Any, ...]:
        header = chunk.header
        return header.received_at_ms, header.game, header.episode, header.seat, header.first_step

    yield from sorted(_decoded(dataset_of(store, url, query, _chunk_blocks, parts), url), key=order)


def dataset_of(store: Store, url: str, query: Query, blocks: Blocks, parts: int = 0) -> Any:
    """A dataset of Ray Data with the rows that `blocks` makes, in the order of the parts; Ray must be connected.

    `parts` 0: one for each PART_STEPS of the game, within PARTS.
    """
    import ray.data
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    stats, (least, most) = store.stats(query.game), PARTS
    count, size_bytes = parts or min(most, max(least, math.ceil(stats.steps / PART_STEPS))), 4 * stats.encoded_bytes

    class StoreSource(Datasource):
        def estimate_inmemory_data_size(self) -> int | None:
            return size_bytes

        def get_read_tasks(
            self, parallelism: int, per_task_row_limit: Any = None, data_context: Any = None
        ) -> list[Any]:
            about = BlockMetadata(None, max(1, size_bytes // count), None, None)
            return [ReadTask(partial(_read, url, query, part, count, blocks), about) for part in range(count)]

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    context.execution_options.verbose_progress = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised as well
    source: Any = StoreSource  # whose constructor Ray left untyped
    return ray.data.read_datasource(source(), override_num_blocks=count)


def tables_of(dataset: Any, url: str) -> Iterator[Any]:
    """The dataset's blocks as Arrow tables; StoreFailed where a reader failed."""
    from ray.exceptions import RayError

    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    except RayError as error:
        raise _failed(error, url) from None


def in_memory(dataset: Any, url: str) -> Any:
    """The dataset, read whole into Ray's object store; StoreFailed where a reader failed."""
    from ray.exceptions import RayError

    try:
        return dataset.materialize()
    except RayError as error:
        raise _failed(error, url) from None


def _failed(error: BaseException, url: str) -> StoreFailed:
    """The error of a reader in another process, by the last line of its message."""
    lines = str(getattr(error, "cause", None) or error).strip().splitlines()
    return StoreFailed(
        f"a reader on Ray failed: {lines[-1] if lines else type(error).__name__}",
        where=url.partition("?")[0],
        do="Let every node reach the store by this URL, or leave --on out",
    )


def _read(url: str, query: Query, part: int, of: int, blocks: Blocks) -> Iterator[Any]:
    """Runs in a process of Ray's."""
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise Missing("this node has no such file", where=url, do="Use a store that every node reaches")
    # The learner has checked the file when it opened it; without this each reader would check all of it again.
    with open_store(url, **({"check": False} if url.startswith("sqlite:") else {})) as store:
        yield from blocks(store.read(query, part=part, of=of))


def _chunk_blocks(chunks: Iterator[Chunk]) -> Iterator[Any]:
    """Rows of one chunk each: its header, and its columns decompressed."""
    import pyarrow

    while block := list(islice(chunks, BLOCK_CHUNKS)):
        headers = [encode_parts(chunk)[0] for chunk in block]
        columns = [pack(dict(chunk.columns)) for chunk in block]
        kind = pyarrow.large_binary()
        yield pyarrow.table({"header": pyarrow.array(headers, kind), "columns": pyarrow.array(columns, kind)})


def _decoded(dataset: Any, url: str) -> Iterator[Chunk]:
    decode = msgspec.msgpack.Decoder(Header).decode
    for table in tables_of(dataset, url):
        for header, columns in zip(table["header"], table["columns"], strict=True):
            head, found = decode(header.as_buffer()), unpack(columns.as_py())
            yield Chunk(head, {column.name: found[column.name] for column in head.columns})  # in the header's order
