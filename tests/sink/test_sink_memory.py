"""What records take of a sink's memory, measured in a process of its own: that of a group of chunks, not of a page."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MAY_RISE_BYTES = 256 << 20
MADE = '''
import resource, sys
from pathlib import Path
import msgspec
import numpy as np
from sparring.games.chunk_checks import ChunkRules
from sparring.games.spec import parse
from sparring.sink.batch_writer import BatchWriter
from sparring.store.sqlite.store import SqliteStore
from sparring.stream.protocol import Placed, Position
from sparring.wire.chunk import Chunk, Column, Header, buffer_bytes, encode
from sparring.wire.ids import new_episode
import zstandard

AT_MS = 1_790_000_000_000
SPEC = parse("""
id = "images"
turns = "simultaneous"
max_ticks = 1000
[[seats]]
name = "eye"
reward_bounds = [0.0, 1.0]
observation = [{ name = "observation/image", kind = "image", dtype = "uint8", shape = [3, 200, 210] }]
action = { name = "action", kind = "discrete", dtype = "int32", choices = [2] }
""")


def record(at, steps, state=0):
    """A record of black images in few kB; 512 steps of them take 61 MiB. With a state of so many numbers, all 0."""
    small = (np.zeros(steps, np.int32), np.zeros(steps, np.float32), np.arange(steps))
    names = ("action", "reward", "tick")
    columns = [Column(name, array.dtype.name, array.shape) for name, array in zip(names, small)]
    columns.append(Column("observation/image", "uint8", (steps, 3, 200, 210)))
    columns += [Column("state/h", "float32", (state,))] if state else []
    head = Header(
        game=SPEC.id, version="1", spec=SPEC.hash, episode=new_episode(AT_MS), seat=0, first_step=0, steps=steps,
        actor="person", source="play", columns=tuple(columns),
    )
    first = b"".join(array.tobytes() + bytes(-array.nbytes % 8) for array in small)
    zeros = sum(buffer_bytes(column) for column in columns[3:])
    assert zeros % 8 == 0
    deflater = zstandard.ZstdCompressor(level=1).compressobj(size=len(first) + zeros)
    body = deflater.compress(first)
    for at_byte in range(0, zeros, 1 << 20):  # a piece at a time: what is measured is the sink
        body += deflater.compress(bytes(min(1 << 20, zeros - at_byte)))
    data = encode(Chunk(head, {}, body + deflater.flush()))
    return Placed("shard-0", Position(str(at)), AT_MS, "stream:plays", data)


def write(pages):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with SqliteStore(Path(sys.argv[1]) / "experience.db") as store:
        writer = BatchWriter(ChunkRules([SPEC]), store, lambda: AT_MS, lambda seconds: None)
        done = writer.write("batch", pages)
        reasons = [[row.verdict, row.field] for game in (SPEC.id, "") for row in store.quarantined(game)]
    rise_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    print(msgspec.json.encode([done.chunks, done.quarantined, reasons, rise_bytes]).decode())
'''


def written(folder: Path, pages: str) -> tuple[int, int, list[Any], int]:
    """Chunks stored, records quarantined, their verdicts and fields, and what the highest resident memory rose by."""
    words = [sys.executable, "-c", f"{MADE}\n\nwrite({pages})", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    chunks, quarantined, reasons, rise_bytes = json.loads(done.stdout)
    return chunks, quarantined, reasons, rise_bytes


def test_a_page_of_large_records_is_inflated_in_groups(tmp_path: Path) -> None:
    chunks, quarantined, _, rise_bytes = written(tmp_path, "[[record(at, 512) for at in range(12)]]")
    assert (chunks, quarantined) == (12, 0)
    assert rise_bytes < MAY_RISE_BYTES


@pytest.mark.parametrize(
    ("numbers", "verdict", "field"), [(15 << 20, "chunk", "state/"), (17 << 20, "wire", "")], ids=["60 MiB", "68 MiB"]
)
def test_a_state_of_any_size_is_quarantined_before_it_is_inflated(
    tmp_path: Path, numbers: int, verdict: str, field: str
) -> None:
    pages = f"[[record(at, 2) for at in range(3)] + [record(at, 2, {numbers}) for at in range(10, 20)]]"
    chunks, quarantined, reasons, rise_bytes = written(tmp_path, pages)
    assert (chunks, quarantined) == (3, 10)
    assert reasons == [[verdict, field]] * 10
    assert rise_bytes < 32 << 20
