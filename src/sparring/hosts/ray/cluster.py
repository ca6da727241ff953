"""Joining a Ray cluster, or starting one on this machine alone.

ray://auto        the cluster that `ray start` runs here, else as ray://local
ray://local       one of our own, on 127.0.0.1 of this machine, ended with the host
ray://HOST:PORT   a running cluster by the address that its head says (port 6379), from one of its nodes
ray://HOST:10001  the same from a machine that is no node of it, through Ray's client server
"""

import importlib
import logging
import os
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparring.errors import ConfigError, Unreachable
from sparring.hosts.protocol import Host

# Ray reads these when it is imported: it reports nothing, prints no log of its workers, and looks no further than
# loopback when it is us who start it.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_agent_register_timeout_ms": "90000",  # on a busy machine its agent starts slowly
}
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": Ray's own ports are bound to 127.0.0.1, on every system

log = logging.getLogger(__name__)

GCS_PORT, CLIENT_PORT = 6379, 10001
REACH_S = 10.0
START_S = 90.0  # after which no other try is made
LEAST_CPUS = 32  # on a machine alone instances share its cores, as local processes do
STORE_BYTES = 1 << 30
END_S = 3.0  # until Ray's processes that were killed have ended


class Cluster:
    """This process's way to a cluster. `discovery` is the URL by which services of this host find each other."""

    def __init__(self, url: str, store_bytes: int = STORE_BYTES) -> None:
        self.namespace = f"sparring-{os.urandom(4).hex()}"
        self.discovery = f"ray://auto/{self.namespace}"
        self._ours = join(address_of(url), store_bytes)
        from ray.util.client import ray as client

        self.remote = bool(client.is_connected())  # type: ignore[no-untyped-call]  # through Ray's client server

    def close(self) -> None:
        """Leave it, if it was this that joined."""
        if self._ours:
            import ray

            ray.shutdown()
            self._ours = False


def open_ray(url: str, logs: Path | None = None, seen: str = "") -> Host:
    """The host behind a URL; `logs` are Ray's own affair."""
    cluster = Cluster(url)  # which makes Ray's settings, before it is imported
    opened: Host = importlib.import_module("sparring.hosts.ray.host").RayHost(url, cluster, seen)
    return opened


def join(address: str, store_bytes: int, patience_s: float = START_S) -> bool:
    """Let this process be a driver at `address` ("auto", "local", host:port); False where it is one already. A start
    that fails is tried again for `patience_s`, and leaves nothing behind."""
    if address == "auto":
        address = running_here() or "local"
    prepare(loopback=address == "local")
    try:
        import ray
    except ImportError:
        do = "Install it: pip install 'sparring[ray]'"
        raise ConfigError("Ray is not installed", where="--on ray://", do=do) from None
    importlib.import_module("sparring.hosts.ray.actor")  # Ray's client knows less of what a method may say of itself
    if ray.is_initialized():
        return False
    words: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if address == "local":
        words |= {
            "num_cpus": max(LEAST_CPUS, os.cpu_count() or 1),
            "include_dashboard": False,
            "object_store_memory": store_bytes,
            "_node_ip_address": "127.0.0.1",
            "_system_config": {"prestart_worker_first_driver": False},
        }
    else:
        try:
            _connect(address, REACH_S)
        except OSError as error:
            where, do = f"ray://{address.removeprefix('ray://')}", "Start it, or look at its address"
            raise Unreachable(f"no Ray cluster answers: {error}", where=where, do=do) from None
    _begin(address, words, patience_s)
    # Ray prints a cluster's troubles to standard output, where our answers go; `Host.watch` tells of them.
    ray._private.worker._worker_logs_enabled = False
    return True


def prepare(loopback: bool) -> None:
    """Make Ray's settings, before it is imported for the first time where that can be."""
    os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
    if loopback and os.environ.setdefault(_LOOPBACK, "0") == "0" and "ray" in sys.modules:
        from ray._private import ray_constants

        ray_constants.ENABLE_RAY_CLUSTER = False  # it was read when Ray was imported, and is not read again


def _begin(address: str, words: dict[str, Any], patience_s: float) -> None:
    """On a busy machine Ray's own parts may not find each other in the half minute that they give themselves."""
    import ray

    begun_s, before = time.monotonic(), _ray_processes()
    until = begun_s + patience_s
    log.info("starting Ray on this machine …" if address == "local" else f"joining the Ray cluster at {address} …")
    while True:
        try:
            ray.init(address, **words)
            log.info(f"Ray is up after {time.monotonic() - begun_s:.0f} s{_how_to_look(address)}")
            return
        except Exception as error:  # noqa: BLE001  (Ray raises bare Exceptions here)
            ray.shutdown()
            _kill(_ray_processes() - before)  # Ray forgets them; they would be in the way of the next try
            if time.monotonic() >= until:
                where, do = f"ray://{address.removeprefix('ray://')}", "See its logs in Ray's session_latest/logs"
                raise Unreachable(f"Ray did not come up: {error}".rstrip("."), where=where, do=do) from None
            log.warning(f"Ray did not come up: {error}")
            log.info("starting Ray again …")


def _how_to_look(address: str) -> str:
    """The command that shows a cluster of our own. Unless it is told otherwise, `ray` does not read the token that Ray
    has given the cluster, and takes 127.0.0.1 for another address of this machine, where nothing listens."""
    if address != "local":
        return ""
    import ray

    return f": RAY_AUTH_MODE=token {_LOOPBACK}=0 ray status --address {ray.get_runtime_context().gcs_address}"


def _ray_processes() -> set[Any]:
    """Children of this process that run one of Ray's programs, as psutil has them."""
    import psutil  # Ray brings one along
    import ray

    home = os.path.dirname(ray.__file__)
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if any(word.startswith(home) for word in child.cmdline()):
                found.add(child)
    return found


def _kill(left_behind: set[Any]) -> None:
    """End those and all that they started."""
    import psutil

    every = list(left_behind)
    for one in left_behind:
        with suppress(psutil.Error):
            every += one.children(recursive=True)
    for one in every:
        with suppress(psutil.Error):
            one.kill()
    psutil.wait_procs(every, timeout=END_S)


def address_of(url: str) -> str:
    """What Ray calls it: "auto", "local", "host:port", or "ray://host:port" for its client server."""
    place = urlsplit(url)
    try:
        port = place.port
    except ValueError:
        port = -1
    if place.scheme != "ray" or not place.hostname or port == -1:
        raise ConfigError(f"{url!r} is no Ray cluster", where="--on", do="Say ray://auto or ray://HOST:PORT")
    if place.hostname in ("auto", "local"):
        return place.hostname
    address = f"{place.hostname}:{port or GCS_PORT}"
    return f"ray://{address}" if port == CLIENT_PORT else address


def _connect(address: str, timeout_s: float) -> None:
    """See whether something listens there; OSError or ValueError where not."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host, int(port)), timeout_s).close()


def running_here() -> str | None:
    """The address of the cluster that was started on this machine, where it still answers."""
    found = os.environ.get("RAY_ADDRESS", "")
    with suppress(OSError, ValueError):
        if not found:
            folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
            found = Path(folder, "ray", "ray_current_cluster").read_text().strip()
        _connect(found, 1.0)
        return found
    return None
