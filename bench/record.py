"""What recording costs the game's thread: the median of one record(), while the background cuts, spools and sends.

Beside it, measured in the same run: a JSON line written to a buffered file (what games do by hand), and the bare
copy of the same numbers into NumPy columns, which is the limit.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench import ledger

import sparring
from sparring.games.catalogue import spec_of
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete
from sparring.wire.ids import GameId

BUDGET_US = 10.0
NOWHERE = "http://127.0.0.1:9"  # nobody answers: spooling and retrying go on beside the measurement

ATARI = GameSpec(
    id=GameId("frames"),
    turns="simultaneous",
    seats=(
        SeatSpec(
            name="player",
            observation=(Leaf(name="observation/frame", kind="image", shape=(84, 84), dtype="uint8"),),
            action=discrete(6),
            reward_bounds=(-1.0, 1.0),
        ),
    ),
    max_ticks=1 << 20,
)


def timed(call: Callable[[int], None], count: int) -> list[float]:
    """Microseconds of each call."""
    taken = []
    for step in range(count):
        begun_ns = time.perf_counter_ns()
        call(step)
        taken.append((time.perf_counter_ns() - begun_ns) / 1000)
    return taken


def ours(spec: GameSpec, observations: Any, episodes: int, folder: str) -> list[float]:
    """record() of whole episodes of 500 steps."""
    taken: list[float] = []
    with sparring.connect(NOWHERE, spec.id, spec=spec, folder=folder, close_timeout_s=0.1) as connection:
        for _ in range(episodes):
            with connection.episode() as episode:
                taken += timed(lambda step, e=episode: e.record(observations[step], step & 1, 1.0, tick=step), 500)  # type: ignore[misc]
                episode.end(observations[0])
            time.sleep(0.002)  # a game has frames: the background is not starved by the measurement itself
    return taken


def many(spec: GameSpec, observations: Any, folder: str) -> list[float]:
    """record_many of 64 games for 128 steps: microseconds for each step of each game."""
    steps, games = 128, 64
    columns = {
        spec.seats[0].observation[0].name: np.broadcast_to(observations[:steps, None], (steps, games, 4)).copy(),
        "action": np.zeros((steps, games), np.int32),
        "reward": np.ones((steps, games), np.float32),
        "tick": np.broadcast_to(np.arange(steps)[:, None], (steps, games)).copy(),
    }
    with sparring.connect(NOWHERE, spec.id, spec=spec, folder=folder, close_timeout_s=0.1) as connection:
        taken = timed(lambda n: connection.record_many(columns, group=str(n)), 20)
    return [one / (steps * games) for one in taken]


def json_lines(observations: Any, folder: str) -> list[float]:
    with (Path(folder) / "steps.jsonl").open("w") as file:

        def write(step: int) -> None:
            row = {"tick": step, "observation": observations[step % 500].tolist(), "action": step & 1, "reward": 1.0}
            file.write(json.dumps(row) + "\n")

        return timed(write, 5000 if observations[0].size < 100 else 300)


def bare_copy(observations: Any) -> list[float]:
    rows = 512
    column = np.empty((rows, *observations.shape[1:]), observations.dtype)
    action, reward, tick = np.empty(rows, np.int32), np.empty(rows, np.float32), np.empty(rows, np.int64)

    def copy(step: int) -> None:
        row = step % rows
        column[row], action[row], reward[row], tick[row] = observations[step % 500], step & 1, 1.0, step

    return timed(copy, 5000)


def case(name: str, runs: list[list[float]], peer: list[float] | None, limit: list[float]) -> dict[str, Any]:
    medians = [statistics.median(run) for run in runs]
    figure = statistics.median(medians)
    peers = {"budget": BUDGET_US} | ({"json line to a file": statistics.median(peer)} if peer else {})
    return {
        "name": name,
        "ours": round(figure, 3),
        "unit": "µs per step, median",
        "p99": round(float(np.percentile(runs[0], 99)), 3),
        "peers": {key: round(value, 3) for key, value in peers.items()},
        "limit": round(statistics.median(limit), 3),
        "ratio": round(min(peers.values()) / figure, 3),
        "goals": {"budget": 1.0},
        "passed": figure <= BUDGET_US,
        "seeds": len(runs),
        "spread": [round(min(medians), 3), round(max(medians), 3)],
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` repeats less."""
    repeats = 2 if args.quick else 5
    rng = np.random.default_rng(0)
    small = rng.uniform(-0.04, 0.04, (500, 4)).astype(np.float32)
    frames = rng.integers(0, 255, (500, 84, 84), np.uint8)
    cartpole = spec_of("cartpole")
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            case(
                "record, CartPole",
                [ours(cartpole, small, 20, folder) for _ in range(repeats)],
                json_lines(small, folder),
                bare_copy(small),
            ),
            case(
                "record, 84 x 84 frame",
                [ours(ATARI, frames, 4, folder) for _ in range(repeats)],
                json_lines(frames, folder),
                bare_copy(frames),
            ),
            case(
                "record_many, CartPole",
                [many(cartpole, small, folder) for _ in range(repeats)],
                None,
                bare_copy(small),
            ),
        ]
    return ledger.result("record", cases)


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
