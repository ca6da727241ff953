"""One gateway from start to stop: the lock, the socket, TLS, the store, the loop, and a clean end.

`spar serve`, `spar demo` and the tests all start here.
"""

import asyncio
import datetime
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from sparring.config import Config, open_data_folder
from sparring.errors import ConfigError, SparringError
from sparring.games.catalogue import Catalogue
from sparring.gateway import tls
from sparring.gateway.app import build
from sparring.gateway.http_limits import LimitedHttp
from sparring.gateway.identity import is_loopback
from sparring.gateway.keys import ApiKeys
from sparring.gateway.state import GatewayState, assemble
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.stream import open_stream
from sparring.wire.messages import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

STOP_WITHIN_S = 3.0
MAX_CONNECTIONS = 4_096
IDLE_S = 75  # a kept-alive connection may be quiet for so long
MAINTENANCE_EVERY_S = 600.0  # retention, and champions signed again
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class GatewayServer:
    """A gateway that accepts connections. `stop` may be called from any thread."""

    url: str
    trust: str
    mode: str  # "anonymous" or "keys"
    fingerprint: str | None  # of the TLS certificate
    stream: str  # the stream that takes what is uploaded; "": the store does
    stop: Callable[[], None]


def serve(config: Config, ready: Callable[[GatewayServer], None]) -> None:
    """Serve until SIGTERM, SIGINT or `GatewayServer.stop`; calls `ready` once connections are accepted.

    Raises ConfigError before anything is opened where it must not bind, cannot bind, or another
    gateway has the data folder.
    """
    data = Path(config.data)
    open_data_folder(data)
    config = _with_certificate(config, data)
    _check_exposure(config, data)
    with ExitStack() as opened:
        opened.enter_context(_data_folder_lock(data))
        listener = opened.enter_context(bound(config.gateway.host, config.gateway.port))
        catalogue = Catalogue.from_config(config)
        stream = opened.enter_context(open_stream(config.stream.url)) if config.stream.url else None
        store = opened.enter_context(open_store(config.store_url))
        settings = config.registry
        registry = opened.enter_context(
            open_registry(
                config.registry_url, champion_days=settings.champion_days, rollout_share=settings.rollout_share
            )
        )
        local = is_loopback(config.gateway.host)
        state = assemble(config, store, registry, catalogue, local=local, stream=stream)
        opened.callback(state.inference.close)
        opened.enter_context(_short_switch_interval())
        hurry = None if stream is None else stream.close  # one that is throttled may not hold up the end
        opened.callback(state.commits.close, STOP_WITHIN_S, hurry)  # first at the end: what was accepted is written
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(state, listener, ready))


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """The event loop and the writer thread share one interpreter lock. Switching ten times as often as by default
    means that an answer does not wait 5 ms while the writer hashes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000_5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def _run(state: GatewayState, listener: socket.socket, ready: Callable[[GatewayServer], None]) -> None:
    server = _Server(_settings(state))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop)
    maintenance = asyncio.create_task(_maintain(state))
    announcement = asyncio.create_task(_announce(server, state, listener, ready))
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in (maintenance, announcement):
            task.cancel()
        await asyncio.gather(maintenance, announcement, return_exceptions=True)
    if announcement.done() and not announcement.cancelled() and (error := announcement.exception()) is not None:
        raise error


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn's own way ends by raising them again, before anything could be closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _settings(state: GatewayState) -> uvicorn.Config:
    gateway = state.config.gateway

    class Http(LimitedHttp):
        head_deadline_s = gateway.body_deadline_s

    return uvicorn.Config(
        build(state),
        http=Http,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=int(STOP_WITHIN_S) - 1,
        ssl_certfile=gateway.tls_cert or None,
        ssl_keyfile=gateway.tls_key or None,
    )


async def _announce(
    server: uvicorn.Server, state: GatewayState, listener: socket.socket, ready: Callable[[GatewayServer], None]
) -> None:
    while not server.started:
        await asyncio.sleep(0.005)

    def stop() -> None:
        server.should_exit = True

    gateway = state.config.gateway
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if gateway.tls_cert else "http"
    mark = tls.fingerprint(Path(gateway.tls_cert)) if gateway.tls_cert else None
    url = f"{scheme}://{shown}:{port}"
    try:
        into = state.config.stream.url.partition("?")[0]
        ready(GatewayServer(url, state.registry.trust, state.identity.mode(), mark, into, stop))
    except BaseException:
        server.should_exit = True
        raise


async def _maintain(state: GatewayState) -> None:
    """Every ten minutes: retention, and champions signed again before they expire."""
    while True:
        try:
            await asyncio.to_thread(_apply_retention, state)
            for spec in state.catalogue.games():
                await asyncio.to_thread(state.registry.champion, spec.id, spec.version)  # signs it again near expiry
        except SparringError as error:
            log.error("%s", error)
        await asyncio.sleep(MAINTENANCE_EVERY_S)


def _apply_retention(state: GatewayState) -> None:
    keep = state.config.store
    if keep.keep_days > 0 or keep.keep_bytes > 0:
        before_ms = int(state.now_ms() - keep.keep_days * DAY_MS) if keep.keep_days > 0 else 0
        gone = state.store.trim(before_ms=before_ms, max_bytes=keep.keep_bytes)
        if gone.episodes:
            state.audit.write("retention", "serve", state.now_ms(), episodes=gone.episodes, chunks=gone.chunks)


def _with_certificate(config: Config, data: Path) -> Config:
    gateway = config.gateway
    if gateway.tls_cert == tls.SELF_SIGNED:
        certificate, key = tls.self_signed(data, gateway.host, datetime.datetime.now(datetime.UTC))
        return replace(config, gateway=replace(gateway, tls_cert=str(certificate), tls_key=str(key)))
    if bool(gateway.tls_cert) != bool(gateway.tls_key):
        raise ConfigError("a certificate and its key come together", where="[gateway] tls_cert", do="Give both")
    for path in filter(None, (gateway.tls_cert, gateway.tls_key)):
        if not Path(path).is_file():
            raise ConfigError("there is no such file", where=path, do="Give the PEM file's path")
    return config


def _check_exposure(config: Config, data: Path) -> None:
    """Anything but loopback needs keys and TLS: an open port is open to the world."""
    host = config.gateway.host
    if is_loopback(host):
        return
    if not config.gateway.tls_cert:
        wrong = "it would be reachable from elsewhere without TLS"
        raise ConfigError(wrong, where=f"--host {host}", do="Add --tls self-signed")
    if not any(key.revoked_at_ms is None for key in ApiKeys(data).all()):
        wrong = "it would be reachable from elsewhere and there is no key"
        raise ConfigError(wrong, where=f"--host {host}", do="Run `spar keys create NAME` first")


@contextmanager
def _data_folder_lock(data: Path) -> Iterator[None]:
    """The data folder is this process's while the block lasts; the lock dies with the process."""
    path = data / "serve.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read(20).strip() or "?"
            wrong = f"another gateway (process {pid}) has this data folder"
            raise ConfigError(wrong, where=str(data), do="Stop it, or use --data") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound there while the block lasts; ConfigError where that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named TCP, or asyncio does not see that it is and leaves Nagle's algorithm on: 40 ms for each answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
        except (OSError, OverflowError) as error:
            text: Any = getattr(error, "strerror", None) or error
            wrong = f"{host}:{port} cannot be bound: {text}"
            raise ConfigError(wrong, where="[gateway] port", do="Stop what uses it, or give --port 0") from None
        yield listener
    finally:
        listener.close()
