"""`consul://127.0.0.1:8500`: services of many machines, each with its Consul agent.

    consul://HOST:PORT?bind=10.0.0.5&keys=/folder&folder=/run/spar&token=…

An instance listens twice: for its own machine as `local://` does, with shared memory and no heartbeat, and at a tcp
port with CURVE keys for all others. The second is registered with the agent and kept there by a heartbeat; callers
keep a table of it by long polls. While an agent is away its last table holds, and instances that refuse a connection
are left out; when it comes back, even with all forgotten, the next heartbeat registers every instance again.
"""

import hashlib
import ipaddress
import logging
import os
import socket as sockets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec
import zmq

from sparring.errors import ConfigError, Missing, Unreachable
from sparring.services.consul_client import FIRST_S, PREFIX, ConsulSite, Heartbeat
from sparring.services.discovery import Announcement, Instance, ServerSocket
from sparring.services.keys import CurveAuthenticator, CurveKeys, create_keys
from sparring.services.local_discovery import Local, default_folder

POLL_S = 10.0
AGAIN_S = 0.3  # between attempts to reach an agent that is away
GRACE_S = 3.0  # that instances of the last table are kept when an agent has come back and knows nothing yet
PROBE_S = 0.25
OPTIONS = ("bind", "folder", "keys", "token")
log = logging.getLogger("sparring.services")


class Consul:
    """A context's guard is its server's: each Server has a context of its own."""

    def __init__(self, site: ConsulSite, local: Local) -> None:
        self._site, self._local = site, local
        self._here = _mark_of(local.folder)
        self._ports: dict[str, str] = {}  # ipc address → tcp address
        self._tables: dict[str, _Table] = {}
        self._probes: dict[str, tuple[float, bool | None]] = {}
        self._lock = threading.Lock()
        self._heartbeat = Heartbeat(site)

    @property
    def local(self) -> Local:
        """Those of this machine alone."""
        return self._local

    def listen(self, socket: "zmq.Socket[bytes]", service: str, id: str) -> ServerSocket:
        near = self._local.listen(socket, service, id)  # before there are keys: this machine's files are guard enough
        guard = self._site.keys.serve(socket)
        socket.setsockopt(zmq.IPV6, int(":" in self._site.bind))
        socket.bind(f"tcp://{_bracketed(self._site.bind)}:*")
        self._ports[near.address] = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return _TwoSockets(near, guard)

    def connect(self, socket: "zmq.Socket[Any]", instance: Instance) -> None:
        if not instance.address.startswith("ipc://"):
            try:
                self._site.keys.call(socket, instance.key)
            except ConfigError:  # it was trusted a moment ago
                socket.close()
                raise
            socket.setsockopt(zmq.IPV6, int("[" in instance.address))
        socket.connect(instance.address)

    def announce(self, instance: Instance) -> Announcement:
        near = self._local.announce(instance)
        far = msgspec.structs.replace(
            instance,
            address=self._ports.pop(instance.address),
            key=self._site.keys.public,
            host=sockets.gethostname(),
            since_s=instance.since_s or time.time(),
        )
        return _TwoAnnouncements(near, self._heartbeat.add(far, self._here))

    def instances(self, service: str) -> tuple[Instance, ...]:
        near, far = self._local.instances(service), self._table(service).instances()
        return (*near, *far) if far else near

    def alive(self, instance: Instance) -> bool:
        if instance.address.startswith("ipc://"):
            return self._local.alive(instance)
        table = self._table(instance.service)
        if all(one.id != instance.id for one in table.instances()):
            return False
        answers = self._probed(instance.address)
        return table.current if answers is None else answers

    def services(self) -> tuple[str, ...]:
        agent = self._site.agent()
        try:
            _, found = agent.get("/v1/catalog/services")
        finally:
            agent.close()
        far = {name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX)}
        return tuple(sorted(far | set(self._local.services())))

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
                table = self._tables[service] = _Table(service, self._site, self._here)
        table.begun.wait(FIRST_S)
        return table

    def _probed(self, address: str) -> bool | None:
        """Whether a process listens there; None where that cannot be told in time."""
        now = time.monotonic()
        with self._lock:
            asked, answers = self._probes.get(address, (0.0, None))
        if now - asked > PROBE_S:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            try:
                sockets.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
                answers = True
            except ConnectionRefusedError:
                answers = False
            except OSError:
                answers = None
            with self._lock:
                self._probes[address] = (now, answers)
        return answers


class _Table:
    """The instances of one service on other machines, kept by a thread."""

    def __init__(self, service: str, site: ConsulSite, here: str) -> None:
        self.service, self._site, self._here = service, site, here
        self.begun = threading.Event()  # the first answer is here, or there will be none soon
        self.current = False  # whether the agent answered last time
        self._found: dict[str, Instance] = {}
        self._before: dict[str, Instance] = {}  # what was known when the agent went away
        self._before_until = 0.0
        self._agent = site.agent()
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
        index, path = 0, f"/v1/health/service/{quote(PREFIX + self.service)}"
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
            if meta.get("place") == self._here or not self._site.keys.trusts(meta.get("key", "").encode()):
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


@dataclass(frozen=True, slots=True)
class _TwoAnnouncements:
    near: Announcement
    far: Announcement

    def close(self) -> None:
        self.near.close()
        self.far.close()


@dataclass(frozen=True, slots=True)
class _TwoSockets:
    local: ServerSocket
    guard: CurveAuthenticator

    @property
    def address(self) -> str:
        return self.local.address

    def close(self) -> None:
        self.guard.close()
        self.local.close()


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
    cluster = hashlib.sha256(f"{host}:{port}".encode()).hexdigest()[:8]
    local = Local(Path(options.get("folder") or default_folder() / f"c-{cluster}"))
    keys = _keys(Path(options.get("keys") or local.folder / "keys"), bind, given="keys" in options)
    token = options.get("token") or os.environ.get("CONSUL_HTTP_TOKEN", "")
    return Consul(ConsulSite(host, port, token, bind, keys), local)


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
