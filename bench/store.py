"""What the store keeps and gives back per second: durable appends of 64 chunks, random chunks, a whole scan.

Beside it, measured in the same run: a Parquet file per commit, synced (what data pipelines do), read back by
row group; and as the limit bare SQLite with the same pragmas, blobs in and out, neither judged nor decoded.
"""

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import ledger

from sparring.games.catalogue import spec_of
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.chunk import Chunk, Header, decode, encode, encode_parts
from sparring.wire.ids import GameId, new_episode

GAME = GameId("cartpole")
CPU_SHARES: list[float] = []
STEPS, GROUP = 512, 64
SCRATCH = ledger.ROOT / "bench" / "results" / "quick"  # not /tmp, which may be memory and sync nothing
FLOORS = {"append": 0.7e6, "random read": 5e6, "scan": 5e6}  # steps/s, from the design


def commits(count: int, seed: int) -> list[list[Chunk]]:
    """`count` groups of chunks as a gateway has them: decoded, with their body at hand."""
    rng = np.random.default_rng(seed)
    head = {"game": GAME, "version": "1", "spec": spec_of(GAME).hash, "seat": 0, "first_step": 0, "steps": STEPS}
    groups = []
    for _ in range(count):
        group = []
        for _ in range(GROUP):
            columns = {
                "observation/state": rng.standard_normal((STEPS, 4), np.float32),
                "action": rng.integers(0, 2, STEPS, np.int32),
                "reward": np.ones(STEPS, np.float32),
                "tick": np.arange(STEPS),
            }
            header = Header(**head, episode=new_episode(), actor="person", source="play", player="0" * 32)  # type: ignore[arg-type]
            group.append(decode(encode(Chunk(header, columns))))
        groups.append(group)
    return groups


def rate(steps: int, work: Callable[[], object]) -> float:
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    # Beside others on the same cores the wall clock measures them too; CPU_SHARES say how much of it was ours.
    CPU_SHARES.append((time.process_time() - cpu_s) / (time.perf_counter() - begun_s))
    return steps / (time.perf_counter() - begun_s)


def ours(folder: Path, groups: list[list[Chunk]], reads: int) -> dict[str, float]:
    total = len(groups) * GROUP * STEPS
    with open_store(f"sqlite:///{folder}/ours.db") as store:
        append = rate(total, lambda: [store.append(group) for group in groups])
        rng, query = np.random.default_rng(0), Query(GAME)
        store.sample(query, 1, rng)
        random = rate(reads * STEPS, lambda: store.sample(query, reads * STEPS, rng))
        scan = rate(total, lambda: sum(1 for _ in store.read(query)))
    return {"append": append, "random read": random, "scan": scan}


def bare(folder: Path, groups: list[list[Chunk]], reads: int) -> dict[str, float]:
    total = len(groups) * GROUP * STEPS
    parts = [[encode_parts(chunk) for chunk in group] for group in groups]
    db = sqlite3.connect(folder / "bare.db", isolation_level=None)
    for pragma in ("page_size = 8192", "journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("CREATE TABLE bodies (id INTEGER PRIMARY KEY, header BLOB, body BLOB)")

    def append() -> None:
        for group in parts:
            db.execute("BEGIN")
            db.executemany("INSERT INTO bodies (header, body) VALUES (?, ?)", group)
            db.execute("COMMIT")

    picks = np.random.default_rng(0).integers(1, len(groups) * GROUP + 1, reads).tolist()
    one = "SELECT header, body FROM bodies WHERE id = ?"
    found = {
        "append": rate(total, append),
        "random read": rate(reads * STEPS, lambda: [db.execute(one, (pick,)).fetchone() for pick in picks]),
        "scan": rate(total, lambda: sum(1 for _ in db.execute("SELECT header, body FROM bodies"))),
    }
    db.close()
    return found


def parquet(folder: Path, groups: list[list[Chunk]], reads: int) -> dict[str, float]:
    total = len(groups) * GROUP * STEPS

    def append() -> None:
        for n, group in enumerate(groups):
            columns: dict[str, Any] = {
                name: np.concatenate([chunk.columns[name] for chunk in group]) for name in ("action", "reward", "tick")
            }
            states = np.concatenate([chunk.columns["observation/state"] for chunk in group])
            columns |= {f"state_{k}": np.ascontiguousarray(states[:, k]) for k in range(4)}
            columns["episode"] = np.repeat([chunk.header.episode for chunk in group], STEPS)
            path = folder / f"{n}.parquet"
            pq.write_table(pa.table(columns), path, row_group_size=STEPS, compression="zstd")
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)

    appended = rate(total, append)
    files = [pq.ParquetFile(folder / f"{n}.parquet") for n in range(len(groups))]
    picks = np.random.default_rng(0).integers(0, len(groups) * GROUP, min(reads, 500)).tolist()

    def read() -> None:
        for pick in picks:
            table = files[pick // GROUP].read_row_group(pick % GROUP)
            [column.to_numpy() for column in table.columns[:7]]

    return {
        "append": appended,
        "random read": rate(len(picks) * STEPS, read),
        "scan": rate(total, lambda: [file.read() for file in files]),
    }


def case(name: str, runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    figures = {who: statistics.median(run[who][name] for run in runs) for who in ("ours", "parquet", "bare sqlite")}
    mine = [run["ours"][name] for run in runs]
    peers = {"parquet, a file per commit": figures["parquet"], "floor of the design": FLOORS[name]}
    return {
        "name": name,
        "ours": round(figures["ours"]),
        "unit": "steps/s",
        "peers": {key: round(value) for key, value in peers.items()},
        "limit": round(figures["bare sqlite"]),
        "ratio": round(figures["ours"] / max(peers.values()), 3),
        "goals": {"floor of the design": 1.0},
        "passed": figures["ours"] >= FLOORS[name],
        "seeds": list(range(len(runs))),
        "spread": [round(min(mine)), round(max(mine))],
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    runs = []
    for seed in range(2 if args.quick else 5):
        groups = commits(10 if args.quick else 40, seed)
        SCRATCH.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            place = Path(folder)
            measured = {"ours": ours, "bare sqlite": bare, "parquet": parquet}
            runs.append({who: measure(place, groups, 2_000) for who, measure in measured.items()})
    cases = [case(name, runs) for name in FLOORS]
    return ledger.result("store", cases, cpu_share=round(statistics.median(CPU_SHARES), 2))


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
