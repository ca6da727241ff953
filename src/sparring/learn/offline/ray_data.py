"""A store read by many processes at once, through Ray Data: `parts` tasks, each of which reads its own episodes.

What comes back does not depend on how many there were: chunks are put in order of receipt, then of their keys, so that
a seed learns the same from any number of readers.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from sparring.errors import Missing, StoreFailed
from sparring.store import open_store
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk, Header, encode_parts
from sparring.wire.ids import GameId
from sparring.wire.tree import pack, unpack

STEPS_OF_A_PART = 50_000  # about; a task holds its part in memory
PARTS = (2, 64)  # at least, at most
BLOCK_CHUNKS = 64

Shaping = Callable[[Iterator[Chunk]], Iterator[Any]]  # a part's chunks as blocks of Ray Data


class StoreSource(Datasource):
    """The chunks of a query as a source of Ray Data; `shaping` says what its rows are."""

    def __init__(self, url: str, query: Query, parts: int, shaping: Shaping, size_bytes: int) -> None:
        begin: Any = super().__init__  # which Ray left untyped
        begin()
        self._url, self._query, self._parts, self._shaping, self._size = url, query, parts, shaping, size_bytes

    def estimate_inmemory_data_size(self) -> int | None:
        return self._size

    def get_read_tasks(self, parallelism: int, per_task_row_limit: Any = None, data_context: Any = None) -> list[Any]:
        about = BlockMetadata(None, max(1, self._size // self._parts), None, None)
        return [
            ReadTask(partial(_read, self._url, self._query, part, self._parts, self._shaping), about)
            for part in range(self._parts)
        ]


def dataset_of(store: Store, url: str, query: Query, shaping: Shaping, parts: int = 0) -> Any:
    """A dataset of Ray Data with the rows that `shaping` makes, its blocks in the order of the parts.

    A Ray must be joined. `parts` 0: as many as the game's steps ask for.
    """
    stats = store.stats(query.game)
    quiet()
    count = parts or parts_for(stats.steps)
    source = StoreSource(url, query, count, shaping, 4 * stats.encoded_bytes)
    return ray.data.read_datasource(source, override_num_blocks=count)


def parts_for(steps: int) -> int:
    """How many tasks read so many steps."""
    least, most = PARTS
    return min(most, max(least, math.ceil(steps / STEPS_OF_A_PART)))


def read_in_parallel(store: Store, url: str, query: Query, parts: int = 0) -> Iterator[Chunk]:
    """Every chunk of the query, read by Ray's processes, in an order that does not depend on how many they are."""
    chunks = list(_chunks(dataset_of(store, url, query, chunk_blocks, parts), url))
    chunks.sort(key=lambda chunk: (chunk.header.received_at_ms, *_place(chunk.header)))
    yield from chunks


def chunk_blocks(chunks: Iterable[Chunk]) -> Iterator[Any]:
    """Rows of one chunk each: its header, and its columns inflated."""
    block: list[Chunk] = []
    for chunk in chunks:
        block.append(chunk)
        if len(block) == BLOCK_CHUNKS:
            yield _chunk_block(block)
            block = []
    if block:
        yield _chunk_block(block)


def rows_of(dataset: Any, url: str) -> Iterator[Any]:
    """The dataset's blocks as Arrow tables; StoreFailed where a reader failed."""
    from ray.exceptions import RayError

    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    except RayError as error:
        raise failed(error, url) from None


def held(dataset: Any, url: str) -> Any:
    """The dataset, read whole into Ray's memory; StoreFailed where a reader failed."""
    from ray.exceptions import RayError

    try:
        return dataset.materialize()
    except RayError as error:
        raise failed(error, url) from None


def failed(error: BaseException, url: str) -> StoreFailed:
    """What a reader elsewhere met, in its own last words."""
    said = str(getattr(error, "cause", None) or error).strip().splitlines()
    return StoreFailed(
        f"a reader on Ray failed: {said[-1] if said else type(error).__name__}",
        where=url.partition("?")[0],
        do="Let every node reach the store by this URL, or leave --on out",
    )


def quiet() -> None:
    """No bars and no chatter; blocks come in the order of their tasks."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    context.execution_options.verbose_progress = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is raised, too


def _read(url: str, query: Query, part: int, of: int, shaping: Shaping) -> Iterator[Any]:
    """In a process of Ray's."""
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise Missing("this node has no such file", where=url, do="Use a store that every node reaches")
    # The file was checked by whoever started this; each reader would walk it all again.
    with open_store(url, **({"check": False} if url.startswith("sqlite:") else {})) as store:
        yield from shaping(store.read(query, part=part, of=of))


def _chunk_block(chunks: list[Chunk]) -> Any:
    headers = [encode_parts(chunk)[0] for chunk in chunks]
    columns = [pack(dict(chunk.columns)) for chunk in chunks]
    kind = pyarrow.large_binary()
    return pyarrow.table({"header": pyarrow.array(headers, kind), "columns": pyarrow.array(columns, kind)})


def _chunks(dataset: Any, url: str) -> Iterator[Chunk]:
    decode = msgspec.msgpack.Decoder(Header).decode
    for table in rows_of(dataset, url):
        for header, columns in zip(table["header"], table["columns"], strict=True):
            head, found = decode(header.as_buffer()), unpack(columns.as_py())
            yield Chunk(head, {column.name: found[column.name] for column in head.columns})  # in their own order


def _place(header: Header) -> tuple[GameId, str, int, int]:
    return header.game, header.episode, header.seat, header.first_step
