"""Ray: an actor's method; callers beside one another as object references, taken in their order."""

import os
import sys
import time
from collections import deque
from pathlib import Path

os.environ.update(RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_USAGE_STATS_ENABLED="0")

import numpy as np
import ray

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.peers.calls_turns import answer_turns, check

STORE_BYTES = 256 << 20


class Echo:
    def __init__(self) -> None:
        self._answers: dict[int, np.ndarray] = {}

    def echo(self, array: np.ndarray) -> np.ndarray:
        if len(array) not in self._answers:
            self._answers[len(array)] = np.full(len(array), 9, np.uint8)
        return self._answers[len(array)]


def main() -> None:
    ray.init(
        num_cpus=2,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    actor = ray.remote(Echo).remote()
    ray.get(actor.echo.remote(np.zeros(1, np.uint8)))

    def calls(array: np.ndarray, callers: int, _: bool, until: float) -> list[float]:
        took = []
        under_way = deque((time.perf_counter(), actor.echo.remote(array)) for _ in range(callers))
        while under_way:
            begun, answer = under_way.popleft()
            check(ray.get(answer), len(array))
            now = time.perf_counter()
            took.append(now - begun)
            if now < until:
                under_way.append((now, actor.echo.remote(array)))
        return took

    try:
        answer_turns(calls)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
