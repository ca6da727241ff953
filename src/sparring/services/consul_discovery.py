"""`consul://127.0.0.1:8500`: services of many machines, each with its Consul agent.

    consul://HOST:PORT?bind=10.0.0.5&keys=/folder&folder=/run/spar&token=…&group=league-duel

Services of a group find each other alone, so that two groups may have services of one name.
An instance listens twice: for its own machine as `local://` does, with shared memory and no heartbeat, and at a tcp
port with CURVE keys for all others. The second is registered with the agent and kept there by a heartbeat; callers
keep a table of it by long polls. While an agent is away its last table holds, and instances that refuse a connection
are left out; when it comes back, even with all forgotten, the next heartbeat registers every instance again.

The agent is asked by the standard library's HTTP: a long poll must be ended from another thread, and its socket can be
shut down.
"""

import hashlib
import http.client
import ipaddress
import json
import logging
import os
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
import zmq

from sparring.errors import ConfigError, Missing, Unreachable
from sparring.services.discovery import Instance, Listening, Local, default_folder
from sparring.services.keys import CurveKeys, create_keys

PREFIX = "sparring-"  # of our services among others in Consul
ANSWER_S, FIRST_S = 2.0, 1.0  # to wait for an answer of the agent; for its first one
BEAT_S, LAPSE_S = 0.5, 2.0  # an instance without a heartbeat for so long is no longer routed to
FORGOTTEN = "1m"  # after which Consul drops one that stays silent; it takes no less
POLL_S = 10.0
AGAIN_S = 0.3  # between attempts to reach an agent that is away
GRACE_S = 3.0  # that instances of the last table are kept when an agent has come back and knows nothing yet
PROBE_S = 0.25
OPTIONS = ("bind", "folder", "group", "keys", "token")
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
        self._connection.close()

    def end(self) -> None:
        """By another thread: a call that waits for an answer raises Unreachable."""
        self._closed = True
        with suppress(OSError, AttributeError):  # it has none yet, or no longer
            self._connection.sock.shutdown(sockets.SHUT_RDWR)

    def _ask(self, method: str, path: str, body: str | None, timeout_s: float) -> tuple[int, int, str]:
        try:
            if self._closed:
                raise OSError("it was ended")
            self._connection.timeout = timeout_s
            if self._connection.sock is not None:
                self._connection.sock.settimeout(timeout_s)
            self._connection.request(method, path, body, self._headers)
            answer = self._connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return answer.status, int(answer.headers.get("X-Consul-Index") or 0), text
        except (OSError, http.client.HTTPException):
            self._connection.close()
            do = "Start its agent, or correct services.discovery"
            raise Unreachable("it does not answer", where=self._where, do=do) from None


class _Heartbeat:
    """Keeps the instances that this process announced registered with its agent: a TTL check, passed twice a second. An
    agent that forgot an instance, or has come back without it, is told of it again by the next heartbeat."""

    def __init__(self, agent: Callable[[], ConsulClient], prefix: str) -> None:
        self._agent, self._prefix = agent, prefix
        self._registered: dict[str, dict[str, Any]] = {}  # id in Consul → its registration
        self._wake, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="consul-beat", daemon=True)
        self._lock = threading.Lock()
        self._closed = False

    def add(self, instance: Instance, here: str) -> str:
        """Its id in Consul."""
        name = self._prefix + instance.service
        consul_id = f"{name}-{instance.id}-{here}"
        self._registered[consul_id] = _registration(instance, name, consul_id, here)
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
        self._wake.set()
        self._begun.wait(FIRST_S)
        return consul_id

    def drop(self, consul_id: str) -> None:
        del self._registered[consul_id]
        with closing(self._agent()) as agent, suppress(Unreachable):  # then Consul drops it by itself
            agent.put(f"/v1/agent/service/deregister/{quote(consul_id)}")

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(3.0)

    def _beat(self) -> None:
        warned = ""
        with closing(self._agent()) as agent:
            while not self._closed:
                self._wake.clear()
                wrong = ""
                try:
                    for consul_id, how in list(self._registered.items()):
                        if agent.put(f"/v1/agent/check/pass/service:{quote(consul_id)}"):  # it was forgotten, or is new
                            wrong = agent.put("/v1/agent/service/register", how)
                except Unreachable as error:
                    wrong = str(error)
                if wrong and wrong != warned:
                    log.warning("not registered: %s; tried again every %g s", wrong, BEAT_S)
                warned = wrong
                self._begun.set()
                self._wake.wait(BEAT_S)


class Consul:
    """`bind` is the address of this machine that others use, and `local` all who are on it. A context's guard is its
    server's: each Server has a context of its own."""

    def __init__(
        self, agent: Callable[[], ConsulClient], bind: str, keys: CurveKeys, local: Local, prefix: str = PREFIX
    ) -> None:
        self._agent, self._bind, self._keys, self.local, self._prefix = agent, bind, keys, local, prefix
        self._here = _mark_of(local.folder)
        self._ports: dict[str, str] = {}  # ipc address → tcp address
        self._tables: dict[str, _Table] = {}
        self._probes: dict[str, tuple[float, bool | None]] = {}
        self._lock = threading.Lock()
        self._heartbeat = _Heartbeat(agent, prefix)

    def listen(self, socket: "zmq.Socket[bytes]", service: str, id: str) -> Listening:
        near = self.local.listen(socket, service, id)  # before there are keys: this machine's files are guard enough
        listening = ExitStack()
        listening.callback(near.close)
        listening.callback(self._keys.serve(socket).stop)
        socket.setsockopt(zmq.IPV6, int(":" in self._bind))
        socket.bind(f"tcp://{_bracketed(self._bind)}:*")
        self._ports[near.address] = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return Listening(near.address, listening.close)

    def connect(self, socket: "zmq.Socket[Any]", instance: Instance) -> None:
        if not instance.address.startswith("ipc://"):
            try:
                self._keys.call(socket, instance.key)
            except ConfigError:  # it was trusted a moment ago
                socket.close()
                raise
            socket.setsockopt(zmq.IPV6, int("[" in instance.address))
        socket.connect(instance.address)

    def announce(self, instance: Instance) -> ExitStack:
        near = self.local.announce(instance)
        far = msgspec.structs.replace(
            instance,
            address=self._ports.pop(instance.address),
            key=self._keys.public,
            host=sockets.gethostname(),
            since_s=instance.since_s or time.time(),
        )
        announced = ExitStack()
        announced.callback(self._heartbeat.drop, self._heartbeat.add(far, self._here))
        announced.callback(near.close)
        return announced

    def instances(self, service: str) -> tuple[Instance, ...]:
        table = self._table(service)
        return (*self.local.instances(service), *(one for one in table.instances() if self._answers(table, one)))

    def alive(self, instance: Instance) -> bool:
        if instance.address.startswith("ipc://"):
            return self.local.alive(instance)
        table = self._table(instance.service)
        return any(one.id == instance.id for one in table.instances()) and self._answers(table, instance)

    def services(self) -> tuple[str, ...]:
        with closing(self._agent()) as agent:
            _, found = agent.get("/v1/catalog/services")
        far = {name.removeprefix(self._prefix) for name in found if name.startswith(self._prefix)}
        return tuple(sorted(far | set(self.local.services())))

    def close(self) -> None:
        """Watch no more; what is announced stays until it is closed itself."""
        self._heartbeat.close()
        with self._lock:
            tables, self._tables = list(self._tables.values()), {}
        for table in tables:
            table.close()

    def _table(self, service: str) -> "_Table":
        with self._lock:
            table = self._tables.get(service)
            if table is None:
                table = self._tables[service] = _Table(service, self._prefix, self._agent(), self._keys, self._here)
        table.begun.wait(FIRST_S)
        return table

    def _answers(self, table: "_Table", instance: Instance) -> bool:
        """Whether a process listens there; where that cannot be told in time, what the agent says."""
        now, address = time.monotonic(), instance.address
        with self._lock:
            asked, answers = self._probes.get(address, (0.0, None))
        if now - asked > PROBE_S:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            try:
                sockets.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
                answers = True
            except OSError as error:
                answers = False if isinstance(error, ConnectionRefusedError) else None
            with self._lock:
                self._probes[address] = (now, answers)
        return table.current if answers is None else answers


class _Table:
    """The instances of one service on other machines, kept by a thread."""

    def __init__(self, service: str, prefix: str, agent: ConsulClient, keys: CurveKeys, here: str) -> None:
        self.service, self._name, self._agent, self._keys, self._here = service, prefix + service, agent, keys, here
        self.begun = threading.Event()  # the first answer is here, or there will be none soon
        self.current = False  # whether the agent answered last time
        self._found: dict[str, Instance] = {}
        self._before: dict[str, Instance] = {}  # what was known when the agent went away
        self._before_until = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"consul-{service}", daemon=True)
        self._thread.start()

    def instances(self) -> tuple[Instance, ...]:
        if self._before and time.monotonic() < self._before_until:
            return tuple({**self._before, **self._found}.values())
        return tuple(self._found.values())

    def close(self) -> None:
        self._closed.set()
        self._agent.end()
        self._thread.join(3.0)

    def _watch(self) -> None:
        index, path = 0, f"/v1/health/service/{quote(self._name, safe='')}"
        while not self._closed.is_set():
            try:
                seen, rows = self._agent.get(path, POLL_S, passing=1, index=index)
                found = {one.id: one for one in self._read(rows)}
            except (Unreachable, ValueError, LookupError) as error:
                if self.current and not self._closed.is_set():
                    log.warning("%s; calls go on with what was known of %s", error, self.service)
                self.current, index = False, 0
                self.begun.set()
                self._closed.wait(AGAIN_S)
                continue
            if not self.current:
                self._before, self._before_until = self._found, time.monotonic() + GRACE_S
            self._found, self.current = found, True
            index = seen if seen >= index else 0  # an agent that forgot all counts from the beginning
            self.begun.set()
        self._agent.close()

    def _read(self, rows: list[dict[str, Any]]) -> Iterator[Instance]:
        for row in rows:
            said = row["Service"]
            meta = said["Meta"] or {}
            if meta.get("place") == self._here or not self._keys.trusts(meta.get("key", "").encode()):
                continue
            again = "".join(meta[name] for name in sorted(meta) if name.startswith("idempotent_"))
            yield Instance(
                service=self.service,
                id=f"{meta['id']}@{meta['host']}.{meta['place'][:6]}",
                address=f"tcp://{_bracketed(said['Address'])}:{int(said['Port'])}",
                pid=int(meta["pid"]),
                idempotent=tuple(filter(None, again.split(","))),
                key=meta["key"],
                host=meta["host"],
                since_s=float(meta["since"]),
            )


def _registration(instance: Instance, name: str, consul_id: str, here: str) -> dict[str, Any]:
    host, _, port = instance.address.removeprefix("tcp://").rpartition(":")
    again = ",".join(instance.idempotent)
    meta = {"id": instance.id, "pid": str(instance.pid), "key": instance.key, "host": instance.host, "place": here}
    meta["since"] = str(instance.since_s)
    for number, start in enumerate(range(0, len(again), 500)):  # a value has at most 512 characters
        meta[f"idempotent_{number:02}"] = again[start : start + 500]
    check = {"TTL": f"{LAPSE_S:g}s", "Status": "passing", "DeregisterCriticalServiceAfter": FORGOTTEN}
    return {
        "ID": consul_id,
        "Name": name,
        "Tags": ["sparring"],
        "Address": host.strip("[]"),
        "Port": int(port),
        "Meta": meta,
        "Check": check,
    }


def _mark_of(folder: Path) -> str:
    """A name for all who see this folder; they are one machine to each other."""
    path, fresh = folder / "place", folder / f".place-{os.urandom(4).hex()}"
    if not path.exists():
        fresh.write_text(os.urandom(8).hex())
        with suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
    return path.read_text()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def open_consul(url: str) -> Consul:
    """consul://HOST:PORT with the options of OPTIONS."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 8500
    except ValueError as error:
        raise ConfigError(f"{url!r}: {error}", where="services.discovery", do="Write consul://HOST:PORT") from None
    options = dict(parse_qsl(parts.query))
    for name in options:
        if name not in OPTIONS:
            near = get_close_matches(name, OPTIONS, n=1)
            do = f"Did you mean {near[0]}" if near else f"There are {', '.join(OPTIONS)}"
            raise ConfigError(f"{name!r} is no option of consul://", where="services.discovery", do=do)
    bind = options.get("bind", "127.0.0.1")
    folder = Path(options.get("folder") or default_folder() / f"c-{_digest(f'{host}:{port}')}")
    group = options.get("group", "")
    local = Local(folder / f"g-{_digest(group)}" if group else folder)  # a digest: a socket's path must not be long
    keys = _keys(Path(options.get("keys") or folder / "keys"), bind, given="keys" in options)
    token = options.get("token") or os.environ.get("CONSUL_HTTP_TOKEN", "")
    prefix = f"{PREFIX}{group}." if group else PREFIX
    return Consul(partial(ConsulClient, host, port, token), bind, keys, local, prefix)


def in_group(url: str, group: str) -> str:
    """The URL of that group's services in the same Consul."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'group': group})}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _address(bind: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address(bind)
    except ValueError:
        raise ConfigError(f"{bind!r} is no address", where="services.bind", do="Write one like 10.0.0.5") from None
    if address.is_unspecified:
        do = "Name the one address of this machine that the others use"
        raise ConfigError(f"{bind} is every address, and others must be told one", where="services.bind", do=do)
    return address


def _keys(folder: Path, bind: str, *, given: bool) -> CurveKeys:
    """The keys that calls need; made where only this machine can call, else they must be there."""
    address = _address(bind)
    if address.is_loopback and not given:
        return create_keys(folder)
    try:
        keys = CurveKeys(folder)
    except Missing:
        near = f"there are no keys in {folder}"
        far = f"{bind} can be reached from other machines, and there are no keys"
        do = "Run `spar services keys create`, copy its folder to every machine, and name it in services.keys"
        raise ConfigError(near if address.is_loopback else far, where="services.keys", do=do) from None
    try:
        sockets.create_server((bind, 0), family=sockets.AF_INET if address.version == 4 else sockets.AF_INET6).close()
    except OSError as error:
        do = "Name an address of this machine (`ip addr` shows them)"
        raise ConfigError(f"cannot listen at {bind}: {error.strerror}", where="services.bind", do=do) from None
    return keys
