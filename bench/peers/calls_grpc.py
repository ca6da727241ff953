"""gRPC (grpcio): a unary call with bytes over a Unix socket; callers beside one another as futures of one channel."""

import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.peers.calls_turns import answer_turns, check

UNBOUNDED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def _array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def serve(address: str) -> None:
    answers: dict[int, np.ndarray] = {}

    def echo(array: np.ndarray, _: grpc.ServicerContext) -> np.ndarray:
        if len(array) not in answers:
            answers[len(array)] = np.full(len(array), 9, np.uint8)
        return answers[len(array)]

    # One worker: the service does one thing at a time, as an actor does.
    server = grpc.server(ThreadPoolExecutor(1), options=UNBOUNDED)
    handler = grpc.unary_unary_rpc_method_handler(echo, _array, np.ndarray.tobytes)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler}),))
    server.add_insecure_port(address)
    server.start()
    print("up", flush=True)
    server.wait_for_termination()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/calls"
        service = subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE)
        assert service.stdout is not None
        service.stdout.readline()
        channel = grpc.insecure_channel(address, options=UNBOUNDED)
        echo = channel.unary_unary("/bench.Echo/Echo", np.ndarray.tobytes, _array)

        def calls(array: np.ndarray, callers: int, _: bool, until: float) -> list[float]:
            took = []
            if callers == 1:
                now = time.perf_counter()
                while now < until:
                    begun = now
                    check(echo(array), len(array))
                    now = time.perf_counter()
                    took.append(now - begun)
                return took
            under_way = deque((time.perf_counter(), echo.future(array)) for _ in range(callers))
            while under_way:
                begun, answer = under_way.popleft()
                check(answer.result(), len(array))
                now = time.perf_counter()
                took.append(now - begun)
                if now < until:
                    under_way.append((now, echo.future(array)))
            return took

        try:
            answer_turns(calls)
        finally:
            channel.close()
            service.kill()
            service.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
