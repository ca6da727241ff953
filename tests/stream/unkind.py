"""A real HTTP proxy before a Kinesis server that throttles, refuses single records, and answers as Amazon does.

`Unkind.rule` is asked for every request; what it answers is done. Everything is counted in `calls`.
"""

import contextlib
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Refuse:
    """The whole call fails with that code."""

    code: str
    status: int = 400
    message: str = "by the test"


@dataclass(frozen=True)
class RefuseRecords:
    """Of a PutRecords these places fail, and the others are put."""

    places: frozenset[int]
    code: str = "ProvisionedThroughputExceededException"


@dataclass(frozen=True)
class LoseAnswer:
    """The call is made, and its answer never comes: the connection is closed."""


Verdict = Refuse | RefuseRecords | LoseAnswer | None
Rule = Callable[[str, dict[str, Any]], Verdict]


@dataclass
class Unkind:
    """Where it listens, what it does, and what it has seen."""

    endpoint: str
    rule: Rule = lambda operation, body: None
    calls: Counter[str] = field(default_factory=Counter)

    def url(self, stream: str, region: str = "us-east-1") -> str:
        return f"kinesis://{stream}?endpoint={self.endpoint}&region={region}"


def name_of(url: str) -> str:
    """The stream that a URL names."""
    return urlsplit(url).netloc


@contextmanager
def unkind(target: str) -> Iterator[Unkind]:
    """Before the server at `target`, kind until told otherwise."""
    far = urlsplit(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
            body = json.loads(raw or b"{}")
            verdict = proxy.rule(operation, body)
            proxy.calls[operation] += 1
            match verdict:
                case Refuse():
                    proxy.calls[f"{operation} refused"] += 1
                    said = {"__type": verdict.code, "message": verdict.message}
                    self._answer(verdict.status, json.dumps(said).encode())
                case RefuseRecords():
                    self._answer(*self._in_part(body, verdict))
                case LoseAnswer():
                    self._forward(raw)
                    self.close_connection = True
                case None:
                    self._answer(*self._forward(raw))

        def _in_part(self, body: dict[str, Any], verdict: RefuseRecords) -> tuple[int, bytes]:
            passed = [one for at, one in enumerate(body["Records"]) if at not in verdict.places]
            results: list[dict[str, Any]] = []
            if passed:
                status, answer = self._forward(json.dumps({**body, "Records": passed}).encode())
                if status != 200:
                    return status, answer
                results = json.loads(answer)["Records"]
            taken = iter(results)
            refused = {"ErrorCode": verdict.code, "ErrorMessage": "Rate exceeded for shard"}
            merged = [refused if at in verdict.places else next(taken) for at in range(len(body["Records"]))]
            proxy.calls["records refused"] += len(body["Records"]) - len(passed)
            failed = {"FailedRecordCount": len(body["Records"]) - len(passed), "Records": merged}
            return 200, json.dumps(failed).encode()

        def _forward(self, raw: bytes) -> tuple[int, bytes]:
            line = http.client.HTTPConnection(far.hostname or "", far.port, timeout=30)
            headers = {key: value for key, value in self.headers.items() if key.lower() != "content-length"}
            try:
                line.request("POST", "/", raw, headers)
                answer = line.getresponse()
                return answer.status, answer.read()
            finally:
                line.close()

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        open_sockets: ClassVar[list[socket.socket]] = []

        def get_request(self) -> tuple[socket.socket, Any]:
            line, address = super().get_request()
            self.open_sockets.append(line)
            return line, address

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that has gone is no fault of ours."""

    with Server(("127.0.0.1", 0), Handler) as server:
        proxy = Unkind(f"http://127.0.0.1:{server.server_port}")
        listener = threading.Thread(target=server.serve_forever, args=(0.05,), name="unkind")
        listener.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            listener.join()
            for line in Server.open_sockets:  # which a client may keep for its next call
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
