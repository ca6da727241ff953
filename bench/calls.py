"""One call of a service in another process: how long it takes, and how many are made in a second.

    spar bench calls [--quick]

An array of 100 B or 1 MB goes there and another of its size comes back; both are looked at. Callers live in one
process: so many calls are under way at once, a new one begun when one is answered. Ours are tasks of an event loop
(one caller: plain `retrieve`), Ray's are object references, gRPC's are futures of one channel, each taken in its order.
Bare ZeroMQ, the limit, sends raw bytes over one socket and matches answers by their order. Batch 32: ours gathers up to
32 callers into one call of the method, for at most 1 ms; the peers have no such thing and answer one by one.

Each library's caller is a process of its own, with its service in another. One library at a time is on the machine: its
processes are started, warmed up, measured in turns of a part of a second and stopped, and the next one is started when
they are all gone: what one does while it idles (Ray's daemons, gRPC's threads) costs itself alone, not whoever is
measured then. This is done in rounds, each begun by another library, so that all meet the same machine over time. A
figure is the median of all turns (6 rounds of 2, quick 1 of 3), its spread the least and the most.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Self

import psutil
from bench import ledger

BARE = "bare ZeroMQ"
LIBRARIES = {"ours": "ours", BARE: "zmq", "gRPC": "grpc", "Ray": "ray"}
PEERS = {"Ray": 6.0, "gRPC": 4.0}  # and by how much ours is to be faster
OF_LIMIT = {1: 0.8, 8: 0.5}  # callers → the part of bare ZeroMQ's calls that ours is to reach, at 100 B
SIZES = {100: "100 B", 1_000_000: "1 MB"}
CALLERS = (1, 8, 64)
WARM = 0.25  # of a turn, before the first one that counts
STARTS, STOP_S = 3, 20.0


class Caller:
    """One library's caller, waiting for its turns. When it is closed, nothing of the library runs any more."""

    def __init__(self, script: str) -> None:
        self._script = ledger.ROOT / "bench" / "peers" / f"calls_{script}.py"
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        for _ in range(STARTS):  # on a busy machine Ray gives up; what it had started ends with it
            self._process = self._started()
            while line := self._read():
                if line == "ready\n":
                    return self
            self._process.communicate()
        raise SystemExit(f"{self._script} does not come up")

    def __exit__(self, *_: object) -> None:
        everybody = psutil.Process(self._process.pid).children(recursive=True)
        try:
            self._process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        _, left = psutil.wait_procs(everybody, timeout=STOP_S)
        for one in left:
            one.kill()

    def iterate(self, size: int, callers: int, batched: bool, seconds: float) -> dict[str, float]:
        assert self._process.stdin is not None
        told = {"bytes": size, "callers": callers, "batched": batched, "seconds": seconds}
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        said: dict[str, float] = json.loads(self._read())
        return said

    def _started(self) -> "subprocess.Popen[str]":
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(self._script)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def cells() -> Iterator[tuple[int, int, bool]]:
    """Size, callers, batched."""
    for batched in (False, True):
        for size in SIZES:
            for callers in CALLERS:
                yield size, callers, batched


def measure(rounds: int, turns: int, seconds: float) -> dict[Any, list[dict[str, float]]]:
    """Every turn, by size, callers, batched and library; the peers' turns serve both kinds of batch."""
    said: dict[Any, list[dict[str, float]]] = {}
    names = list(LIBRARIES)
    for number in range(rounds):
        for who in names[number % len(names) :] + names[: number % len(names)]:
            mine = [cell for cell in cells() if who == "ours" or not cell[2]]
            with Caller(LIBRARIES[who]) as caller:
                for cell in mine:
                    caller.iterate(*cell, seconds * WARM)
                for cell in mine * turns:
                    said.setdefault((*cell, who), []).append(caller.iterate(*cell, seconds))
    return said


def cases(turns: Mapping[Any, list[dict[str, float]]]) -> list[dict[str, Any]]:
    made = []
    for size, many, batched in cells():
        ours = turns[size, many, batched, "ours"]
        rates = {who: _median(turns[size, many, False, who], "rate") for who in (*PEERS, BARE)}
        limit = rates.pop(BARE)
        goals = {} if batched else dict(PEERS)
        if not batched and size == 100 and many in OF_LIMIT:
            goals["limit"] = OF_LIMIT[many]
        others = {who: turns[size, many, False, who] for who in (*PEERS, BARE)}
        made.append(
            ledger.case(
                f"{SIZES[size]}, {many} caller{'s' if many > 1 else ''}, batch {32 if batched else 1}",
                _median(ours, "rate"),
                "calls/s",
                peers=rates,
                limit=limit,
                goals=goals,
                spread=(round(min(one["rate"] for one in ours), 1), round(max(one["rate"] for one in ours), 1)),
                round_trip_us={
                    who: {part: _median(told, f"{part}_us") for part in ("p50", "p99")}
                    for who, told in {"ours": ours, **others}.items()
                },
            )
        )
    return made


def _median(turns: list[dict[str, float]], what: str) -> float:
    return round(statistics.median(one[what] for one in turns), 1)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    turns = measure(rounds=1, turns=3, seconds=0.15) if args.quick else measure(rounds=6, turns=2, seconds=0.5)
    return ledger.result("calls", cases(turns))


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
