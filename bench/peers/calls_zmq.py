"""Bare ZeroMQ: ROUTER and DEALER over ipc, raw bytes there and back, no head, no deadline, no routing. The limit."""

import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.peers.calls_turns import answer_turns, check

LARGE_BYTES = 65_536  # what is larger is not copied


def serve(address: str) -> None:
    inbox = zmq.Context().socket(zmq.ROUTER)
    inbox.bind(address)
    answers: dict[int, np.ndarray] = {}
    while True:
        caller, said = inbox.recv_multipart(copy=False)
        size = len(said.buffer)
        if size not in answers:
            answers[size] = np.full(size, 9, np.uint8)
        inbox.send(caller, zmq.SNDMORE)
        inbox.send(answers[size], copy=size < LARGE_BYTES)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/calls"
        service = subprocess.Popen([sys.executable, __file__, address])
        line = zmq.Context().socket(zmq.DEALER)
        line.connect(address)

        def calls(array: np.ndarray, callers: int, _: bool, until: float) -> list[float]:
            size, copy, begun, took = len(array), len(array) < LARGE_BYTES, deque[float](), []
            for _ in range(callers):
                begun.append(time.perf_counter())
                line.send(array, copy=copy)
            while begun:
                heard = line.recv(copy=copy)
                check(np.frombuffer(heard if copy else heard.buffer, np.uint8), size)
                now = time.perf_counter()
                took.append(now - begun.popleft())
                if now < until:
                    begun.append(now)
                    line.send(array, copy=copy)
            return took

        try:
            answer_turns(calls)
        finally:
            service.kill()
            service.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
