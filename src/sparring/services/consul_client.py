"""A Consul agent: its HTTP interface, as little as is needed, and the heartbeat that keeps instances registered.

The standard library's HTTP, because a long poll must be ended from another thread, and its socket can be shut down.
"""

import http.client
import json
import logging
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from sparring.errors import Unreachable
from sparring.services.discovery import Instance
from sparring.services.keys import CurveKeys

PREFIX = "sparring-"  # of our services among others in Consul
ANSWER_S = 2.0
BEAT_S, LAPSE_S = 0.5, 2.0  # an instance without a heartbeat for so long is no longer routed to
FORGOTTEN = "1m"  # after which Consul drops one that stays silent; it takes no less
FIRST_S = 1.0  # to wait for the agent's first answer
log = logging.getLogger("sparring.services")


class ConsulClient:
    """One connection, for one thread; any other may end what it waits for."""

    def __init__(self, host: str, port: int, token: str = "") -> None:
        self._where = f"Consul at {host}:{port}"
        self._connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
        self._headers = {"X-Consul-Token": token} if token else {}
        self._closed = False

    def put(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """ "" where it was done, else why the agent would not. Unreachable where it does not answer."""
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
        self._connection.close()

    def end(self) -> None:
        """By another thread: a call that waits for an answer raises Unreachable."""
        self._closed = True
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, method: str, path: str, body: str | None, timeout_s: float) -> tuple[int, int, str]:
        for again in (True, False):  # a connection that was kept may have ended meanwhile
            if self._closed:
                break
            kept = self._connection.sock is not None
            try:
                self._connection.timeout = timeout_s
                if self._connection.sock is not None:
                    self._connection.sock.settimeout(timeout_s)
                self._connection.request(method, path, body, self._headers)
                answer = self._connection.getresponse()
                text = answer.read().decode("utf-8", "replace")
                return answer.status, int(answer.headers.get("X-Consul-Index") or 0), text
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if not (kept and again) or isinstance(error, TimeoutError):
                    break
        raise Unreachable("it does not answer", where=self._where, do="Start its agent, or mend services.discovery")


@dataclass(frozen=True, slots=True)
class ConsulSite:
    """Where the agent is, and by which address and keys others reach this machine."""

    host: str
    port: int
    token: str
    bind: str  # the address of this machine that others use
    keys: CurveKeys

    def agent(self) -> ConsulClient:
        return ConsulClient(self.host, self.port, self.token)


class Heartbeat:
    """Keeps the instances that this process announced registered with its agent: a TTL check, passed twice a second. An
    agent that forgot an instance, or has come back without it, is told of it again by the next heartbeat."""

    def __init__(self, site: ConsulSite) -> None:
        self._site = site
        self._registered: dict[str, dict[str, Any]] = {}  # id in Consul → its registration
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._warned = ""

    def add(self, instance: Instance, here: str) -> "Registration":
        consul_id = f"{PREFIX}{instance.service}-{instance.id}-{here}"
        first = threading.Event()
        with self._lock:
            self._registered[consul_id] = _registration(instance, consul_id, here)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, args=(first,), name="consul-beat", daemon=True)
                self._thread.start()
            else:
                first.set()
        self._wake.set()
        first.wait(FIRST_S)
        return Registration(self, consul_id)

    def drop(self, consul_id: str) -> None:
        with self._lock:
            self._registered.pop(consul_id, None)
        agent = self._site.agent()
        with suppress(Unreachable):  # then Consul drops it by itself
            agent.put(f"/v1/agent/service/deregister/{quote(consul_id)}")
        agent.close()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(3.0)

    def _beat(self, first: threading.Event) -> None:
        agent = self._site.agent()
        while not self._closed:
            self._wake.clear()
            with self._lock:
                kept = list(self._registered.items())
            wrong = ""
            for consul_id, how in kept:
                try:
                    if agent.put(f"/v1/agent/check/pass/service:{quote(consul_id)}"):  # it was forgotten, or is new
                        wrong = agent.put("/v1/agent/service/register", how)
                except Unreachable as error:
                    wrong = str(error)
                    break
            if wrong and wrong != self._warned:
                log.warning("not registered: %s; tried again every %g s", wrong, BEAT_S)
            self._warned = wrong
            first.set()
            self._wake.wait(BEAT_S)
        agent.close()


@dataclass(frozen=True, slots=True)
class Registration:
    """One instance that is kept registered."""

    heartbeat: Heartbeat
    consul_id: str

    def close(self) -> None:
        self.heartbeat.drop(self.consul_id)


def _registration(instance: Instance, consul_id: str, here: str) -> dict[str, Any]:
    host, _, port = instance.address.removeprefix("tcp://").rpartition(":")
    again = ",".join(instance.idempotent)
    meta = {"id": instance.id, "pid": str(instance.pid), "key": instance.key, "host": instance.host, "place": here}
    meta["since"] = str(instance.since_s)
    for number, start in enumerate(range(0, len(again), 500)):  # a value has at most 512 characters
        meta[f"idempotent_{number:02}"] = again[start : start + 500]
    check = {"TTL": f"{LAPSE_S:g}s", "Status": "passing", "DeregisterCriticalServiceAfter": FORGOTTEN}
    return {
        "ID": consul_id,
        "Name": PREFIX + instance.service,
        "Tags": ["sparring"],
        "Address": host.strip("[]"),
        "Port": int(port),
        "Meta": meta,
        "Check": check,
    }
