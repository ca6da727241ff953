"""Ours: a service in another process; one caller as `retrieve`, several as tasks of one event loop."""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.peers.calls_turns import answer_turns, check

from sparring.services.discovery import Local
from sparring.services.register import register
from sparring.services.server import Server
from sparring.services.solver import Solver

BATCH, WAIT_MS = 32, 1.0


class Echo:
    def __init__(self) -> None:
        self._answers: dict[int, np.ndarray] = {}

    @register()
    def echo(self, array: np.ndarray) -> np.ndarray:
        return self._answer(len(array))[0]

    @register(batch=BATCH, wait_ms=WAIT_MS)
    def echoes(self, arrays: np.ndarray) -> np.ndarray:
        return self._answer(arrays.shape[1])[: len(arrays)]

    def _answer(self, size: int) -> np.ndarray:
        if size not in self._answers:
            self._answers[size] = np.full((BATCH, size), 9, np.uint8)
        return self._answers[size]


def serve(folder: str) -> None:
    with Server(Echo(), Local(Path(folder))):
        print("up", flush=True)
        sys.stdin.read()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        service = subprocess.Popen([sys.executable, __file__, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert service.stdout is not None
        service.stdout.readline()
        loop = asyncio.new_event_loop()
        with Solver(Local(Path(folder))) as solver:

            async def caller(array: np.ndarray, verb: str, until: float, took: list[float]) -> None:
                now = time.perf_counter()
                while now < until:
                    begun = now
                    check(await solver.retrieve_async("Echo", verb, array), len(array))
                    now = time.perf_counter()
                    took.append(now - begun)

            async def all_callers(array: np.ndarray, callers: int, verb: str, until: float) -> list[float]:
                took: list[float] = []
                await asyncio.gather(*(caller(array, verb, until, took) for _ in range(callers)))
                return took

            def calls(array: np.ndarray, callers: int, batched: bool, until: float) -> list[float]:
                verb, took = "echoes" if batched else "echo", []
                if callers > 1:
                    return loop.run_until_complete(all_callers(array, callers, verb, until))
                now = time.perf_counter()
                while now < until:
                    begun = now
                    check(solver.retrieve("Echo", verb, array), len(array))
                    now = time.perf_counter()
                    took.append(now - begun)
                return took

            try:
                answer_turns(calls)
            finally:
                loop.run_until_complete(solver.close_async())
                loop.close()
        service.communicate()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
