"""The HTTP interface of a Consul agent, as little as is needed: by the standard library, because a long poll must be
ended from another thread, and a socket of our own can be shut down."""

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sparring.errors import Unreachable
from sparring.services.keys import CurveKeys

PREFIX = "sparring-"  # of our services among others in Consul
ANSWER_S = 2.0


class ConsulClient:
    """One connection, for one thread; any other may end what it waits for."""

    def __init__(self, host: str, port: int, token: str = "") -> None:
        self._where = f"Consul at {host}:{port}"
        self._line = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
        self._headers = {"X-Consul-Token": token} if token else {}
        self._closed = False

    def put(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """ "" where it was done, else why the agent would not. Unreachable where nobody answers."""
        status, _, text = self._ask("PUT", path, None if body is None else json.dumps(body), ANSWER_S)
        return "" if status == 200 else f"{status} {text[:200]}".strip()

    def get(self, path: str, wait_s: float = 0.0, **query: str | int) -> tuple[int, Any]:
        """[index, what is there]; with `index` in the query once that is newer, at the latest after `wait_s`."""
        words = urlencode({**query, "wait": f"{wait_s:.0f}s"} if wait_s else query)
        status, index, text = self._ask("GET", f"{path}?{words}", None, wait_s * 1.1 + ANSWER_S)
        if status != 200:
            raise Unreachable(f"it answers {status}: {text[:200]}", where=self._where, do="Ask its administrator")
        return index, json.loads(text)

    def close(self) -> None:
        """By the thread that uses it."""
        self._closed = True
        self._line.close()

    def end(self) -> None:
        """By another thread: whoever waits for an answer gets Unreachable."""
        self._closed = True
        line = self._line.sock
        if line is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _ask(self, method: str, path: str, body: str | None, timeout_s: float) -> tuple[int, int, str]:
        for again in (True, False):  # a connection that was kept may have ended meanwhile
            if self._closed:
                break
            kept = self._line.sock is not None
            try:
                self._line.timeout = timeout_s
                if self._line.sock is not None:
                    self._line.sock.settimeout(timeout_s)
                self._line.request(method, path, body, self._headers)
                answer = self._line.getresponse()
                text = answer.read().decode("utf-8", "replace")
                return answer.status, int(answer.headers.get("X-Consul-Index") or 0), text
            except (OSError, http.client.HTTPException) as error:
                self._line.close()
                if not (kept and again) or isinstance(error, TimeoutError):
                    break
        raise Unreachable("it does not answer", where=self._where, do="Start its agent, or mend services.discovery")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent is, and what this side is to others."""

    host: str
    port: int
    token: str
    bind: str  # the address of this machine that others use
    keys: CurveKeys

    def agent(self) -> ConsulClient:
        return ConsulClient(self.host, self.port, self.token)
