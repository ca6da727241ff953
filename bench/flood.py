"""Client processes that send requests encoded beforehand, as fast as they are answered."""

import multiprocessing
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Encode = Callable[[int, int], list[bytes]]  # (client, how many) → whole HTTP requests


@dataclass(frozen=True)
class Flood:
    """What came of it: answers that were ok, and how long each took."""

    answers: int
    seconds: float
    p50_ms: float
    p99_ms: float
    begun_s: float = 0.0  # of the monotonic clock: when the first was sent


def request(path: str, kind: str, body: bytes) -> bytes:
    """A whole POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def flood(port: int, encode: Encode, *, clients: int, seconds: float, requests: int) -> Flood:
    """Every client sends its own requests one after the other, all from the same moment on."""
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(clients), context.SimpleQueue()
    processes = [
        context.Process(target=_client, args=(port, encode, at, requests, seconds, gate, results))
        for at in range(clients)
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    if failed := [one for one in found if isinstance(one, str)]:
        raise SystemExit(f"a client failed: {failed[0]}")
    begun, ended = min(one[0] for one in found), max(one[1] for one in found)
    taken = sorted(each for one in found for each in one[2])
    return Flood(len(taken), ended - begun, taken[len(taken) // 2] * 1e3, taken[len(taken) * 99 // 100] * 1e3, begun)


def _client(port: int, encode: Encode, at: int, requests: int, seconds: float, gate: Any, results: Any) -> None:
    try:
        sent = encode(at, requests)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            gate.wait(120)
            begun, taken = time.monotonic(), []
            for one in sent:
                asked = time.monotonic()
                if asked - begun > seconds:
                    break
                connection.sendall(one)
                _answer(connection)
                taken.append(time.monotonic() - asked)
            results.put((begun, time.monotonic(), taken))
    except BaseException as error:
        gate.abort()
        results.put(f"{type(error).__name__}: {error}")
        raise


def _answer(connection: socket.socket) -> None:
    got = b""
    while b"\r\n\r\n" not in got:
        got += _some(connection)
    head, _, body = got.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += _some(connection)
    if not head.startswith(b"HTTP/1.1 200") or not (b'"new"' in body or b'"taken"' in body):
        raise ConnectionError(f"{head[:40]!r} {body[:300]!r}")


def _some(connection: socket.socket) -> bytes:
    part = connection.recv(65536)
    if not part:
        raise ConnectionError("closed")
    return part
