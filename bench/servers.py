"""Which server carries the gateway: granian or uvicorn, under 10 kB POST bodies from 8 client processes, one worker.

The application only reads the body and answers 60 bytes, so the figures are the servers' own. Behind
docs/decisions/0030-uvicorn.md; granian is no dependency, install it to measure again:

    python -m bench.servers [--quick]
"""

import json
import multiprocessing
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BODY_BYTES = 10_000
CLIENTS = 8


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Read the whole body, answer a little JSON."""
    if scope["type"] != "http":
        return
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    answer = b'{"results":[{"verdict":"new"}],"sample_rate":1.0,"size":%5d}' % size
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


SERVERS = {
    "uvicorn": "import uvicorn; uvicorn.run('bench.servers:application', host='127.0.0.1', port={port}, "
    "log_level='warning', lifespan='off')",
    "granian": "import asyncio; from granian.server.embed import Server; from bench.servers import application; "
    "asyncio.run(Server(application, port={port}, interface='asginl', log_level='error').serve())",
}


def flood(port: int, seconds: float, results: "multiprocessing.Queue[list[float]]") -> None:
    """One client: keep-alive POSTs as fast as they are answered; puts every latency in seconds."""
    request = (
        b"POST /v1/games/cartpole/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-spar-chunks\r\n"
        b"Content-Length: %d\r\n\r\n" % BODY_BYTES
    ) + bytes(BODY_BYTES)
    taken = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                part = connection.recv(65536)
                if not part:
                    raise ConnectionError("the server closed the connection")
                answer += part
            taken.append(time.perf_counter() - begun)
    results.put(taken)


def measure(server: str, seconds: float) -> dict[str, float]:
    """Requests per second and latencies of one server in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = Path(__file__).parent.parent
    process = subprocess.Popen([sys.executable, "-c", SERVERS[server].format(port=port)], cwd=root)
    try:
        _wait(port)
        results: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
        clients = [multiprocessing.Process(target=flood, args=(port, seconds, results)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        taken = sorted(second for _ in clients for second in results.get())
        for client in clients:
            client.join()
    finally:
        process.kill()
        process.wait()
    return {
        "requests_per_s": len(taken) / seconds,
        "p50_ms": taken[len(taken) // 2] * 1e3,
        "p99_ms": taken[len(taken) * 99 // 100] * 1e3,
    }


def _wait(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the server did not start")


def main(quick: bool) -> dict[str, Any]:
    """Three rounds, servers taking turns; the medians."""
    rounds = [{server: measure(server, 1.0 if quick else 4.0) for server in SERVERS} for _ in range(3)]
    middle = {
        server: {key: sorted(each[server][key] for each in rounds)[1] for key in rounds[0][server]}
        for server in SERVERS
    }
    return {"name": "servers", "median_of_3": middle, "rounds": rounds}


if __name__ == "__main__":
    print(json.dumps(main("--quick" in sys.argv), indent=2))
