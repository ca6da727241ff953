"""Chunks as Parquet and back: one row per step, the header's fields beside it, every number as it was.

`layout` says how a chunk's columns were named, typed and shaped, so that what comes back has the same
content hash. A column without a step axis stands in its chunk's last row (`final_observation/…`) or
first (`state/…`) and is null elsewhere.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparring.errors import Refused
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import MAX_STEPS, Array, Chunk, Column, Header

ROW_GROUP_STEPS = 65_536
PER_CHUNK = ("final_observation/", "state/")  # columns without a step axis

_TEXTS = ("game", "version", "spec", "episode", "player", "actor", "source", "ending", "lease", "uploader", "layout")
_NUMBERS = {"seat": pa.int32(), "step": pa.int64(), "first_step": pa.int64(), "sample_rate": pa.float64(),
            "outcome": pa.float64(), "seed": pa.uint64(), "received_at_ms": pa.int64()}  # fmt: skip
_HEADER = pa.schema([*((name, pa.string()) for name in _TEXTS), *_NUMBERS.items()])


@dataclass(frozen=True, slots=True)
class ParquetExport:
    """What went into a file."""

    chunks: int
    steps: int
    bytes: int


def write(
    store: Store, query: Query, path: Path, *, progress: Callable[[int], None] = lambda steps: None
) -> ParquetExport:
    """Export `query` into one file, a row group at a time. Two passes: the first finds out which columns there are."""
    schema = _schema(store.read(query), str(path))
    chunks = steps = waiting = 0
    rows: list[Any] = []
    partial = path.with_name(f"{path.name}.partial")
    with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for chunk in store.read(query):
            if any(column.name not in schema.names for column in _layout(chunk)):
                continue  # came with a new column between the passes; the next export has it
            rows.append(_batch(chunk, schema))
            chunks, steps, waiting = chunks + 1, steps + chunk.header.steps, waiting + chunk.header.steps
            if waiting >= ROW_GROUP_STEPS:
                writer.write_table(pa.Table.from_batches(rows, schema))
                rows, waiting = [], 0
                progress(steps)
        if rows:
            writer.write_table(pa.Table.from_batches(rows, schema))
    partial.replace(path)  # under its name only once it is whole
    return ParquetExport(chunks, steps, path.stat().st_size)


def encode(chunks: Sequence[Chunk], where: str) -> bytes:
    """A whole file of these chunks, in memory; for few at a time. Refused where two disagree about a column's type."""
    schema = _schema(chunks, where)
    held = pa.BufferOutputStream()
    with pq.ParquetWriter(held, schema, compression="zstd") as writer:
        writer.write_table(pa.Table.from_batches([_batch(chunk, schema) for chunk in chunks], schema))
    return bytes(held.getvalue())


def read(path: Path) -> Iterator[Chunk]:
    """The chunks of an export, in its order; Refused where the file is not one."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        do = "Name a file that `spar data export` wrote"
        raise Refused(f"it is no Parquet file: {error}", where=str(path), do=do) from None
    with file:
        lacking = [name for name in _HEADER.names if name not in file.schema_arrow.names]
        if lacking:
            do = "Name a file that `spar data export` wrote"
            raise Refused(f"it lacks the columns {', '.join(lacking)}", where=str(path), do=do)
        rest = None
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            table = table if rest is None else pa.concat_tables([rest, table])
            starts = _starts(table)
            for start, end in itertools.pairwise(starts):
                yield _chunk(table.slice(start, end - start), path)
            rest = table.slice(starts[-1])  # its chunk may go on in the next row group
        if rest is not None and len(rest):
            yield _chunk(rest, path)


def _layout(chunk: Chunk) -> list[Column]:
    return [Column(name, array.dtype.name, array.shape) for name, array in chunk.columns.items()]


def _schema(chunks: Iterable[Chunk], where: str) -> Any:
    """One type per column over all chunks: plain where every chunk has one number per step, a list otherwise."""
    dtypes: dict[str, str] = {}
    plain: dict[str, bool] = {}
    for chunk in chunks:
        for column in _layout(chunk):
            if dtypes.setdefault(column.name, column.dtype) != column.dtype:
                wrong = f"{column.name} is {dtypes[column.name]} in some chunks and {column.dtype} in others"
                raise Refused(wrong, where=where, do="Export one --version, or one --seat, at a time")
            flat = len(column.shape) == 1 and not column.name.startswith(PER_CHUNK)
            plain[column.name] = plain.get(column.name, True) and flat
    schema = _HEADER
    for name, dtype in dtypes.items():
        kind = pa.from_numpy_dtype(np.dtype(dtype))
        schema = schema.append(pa.field(name, kind if plain[name] else pa.list_(kind)))
    return schema


def _batch(chunk: Chunk, schema: Any) -> Any:
    head, steps = chunk.header, chunk.header.steps
    layout = msgspec.json.encode(_layout(chunk)).decode()
    fields = {name: layout if name == "layout" else getattr(head, name, None) for name in _HEADER.names}
    columns = []
    for field in schema:
        if field.name == "step":
            columns.append(pa.array(np.arange(head.first_step, head.first_step + steps)))
        elif field.name in fields:
            columns.append(pa.repeat(pa.scalar(fields[field.name], field.type), steps))
        elif field.name not in chunk.columns:
            columns.append(pa.nulls(steps, field.type))
        else:
            columns.append(_cells(field, chunk.columns[field.name], steps))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cells(field: Any, array: Array, steps: int) -> Any:
    flat = np.ascontiguousarray(array).reshape(-1)
    if not pa.types.is_list(field.type):
        return pa.array(flat)
    if field.name.startswith(PER_CHUNK):
        row = steps - 1 if field.name.startswith("final_") else 0
        offsets = np.where(np.arange(steps + 1) > row, len(flat), 0)
        mask = pa.array(np.arange(steps) != row)
    else:
        offsets, mask = np.arange(steps + 1) * (len(flat) // steps), None
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(flat), mask=mask)


def _starts(table: Any) -> list[int]:
    """Where each chunk begins: the rows whose key differs from the row before."""
    changes = np.ones(len(table), bool)
    keys = [table[name].to_numpy() for name in ("game", "episode", "seat", "first_step")]
    if len(table):
        changes[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return [int(row) for row in np.flatnonzero(changes)]


def _chunk(table: Any, path: Path) -> Chunk:
    first = {name: table[name][0].as_py() for name in _HEADER.names}
    steps, at = len(table), table["step"].to_numpy()
    where = f"{path}, episode {first['episode']}, step {first['first_step']}"
    if steps > MAX_STEPS or not np.array_equal(at, np.arange(first["first_step"], first["first_step"] + steps)):
        raise Refused("its rows are not the steps of one chunk", where=where, do="Import the file as it was exported")
    columns: dict[str, Array] = {}
    try:
        for column in msgspec.json.decode(first["layout"], type=list[Column]):
            columns[column.name] = _array(table[column.name], column)
    except (msgspec.DecodeError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise Refused(f"a column is not what its layout says: {error}", where=where, do="Export it again") from None
    header = Header(**{name: first[name] for name in _HEADER.names if name not in ("step", "layout")}, steps=steps)
    return Chunk(header, columns)


def _array(cells: Any, column: Column) -> Array:
    cells = cells.combine_chunks()
    if pa.types.is_list(cells.type):
        cells = cells.flatten()  # skips the nulls of per-chunk columns
    return np.asarray(cells.to_numpy(zero_copy_only=False), column.dtype).reshape(column.shape)
