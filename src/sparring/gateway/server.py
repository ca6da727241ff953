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
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from sparring.config import Config, GatewayConfig, open_data_folder
from sparring.errors import ConfigError, SparringError
from sparring.games.catalogue import Catalogue
from sparring.gateway.app import build
from sparring.gateway.certificates import fingerprint, self_signed
from sparring.gateway.connections import IDLE_S, Listener, bound, raise_file_limit
from sparring.gateway.credentials import ApiKeys, open_identity
from sparring.gateway.identity import is_loopback
from sparring.gateway.limited_protocols import LimitedHttp, LimitedSocket
from sparring.gateway.state import GatewayState
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.stream import open_stream
from sparring.wire.messages import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

STOP_WITHIN_S = 3.0
MAINTENANCE_EVERY_S = 600.0  # retention, and champions signed again
DAY_MS = 86_400_000
SELF_SIGNED = "self-signed"


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
    _tls_context(config.gateway)
    room = raise_file_limit(config.gateway.connections)
    config = replace(config, gateway=replace(config.gateway, connections=room))
    with ExitStack() as opened:
        opened.enter_context(_data_folder_lock(data))
        listener = opened.enter_context(bound(config.gateway.host, config.gateway.port))
        catalogue = Catalogue.from_config(config)
        stream = opened.enter_context(open_stream(config.stream.url)) if config.stream.url else None
        store = opened.enter_context(open_store(config.store_url))
        days, share = config.registry.champion_days, config.registry.rollout_share
        registry = opened.enter_context(open_registry(config.registry_url, champion_days=days, rollout_share=share))
        local = is_loopback(config.gateway.host)
        state = GatewayState(config, store, registry, catalogue, local=local, stream=stream)
        opened.callback(state.inference.close)
        # The event loop and the writer thread share one interpreter lock. Switching ten times as often as by default
        # means that an answer does not wait 5 ms while the writer hashes.
        sys.setswitchinterval(0.000_5)
        hurry = None if stream is None else stream.close  # one that is throttled may not hold up the end
        opened.callback(state.commits.close, STOP_WITHIN_S, hurry)  # first at the end: what was accepted is written
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(state, listener, ready))


async def _run(state: GatewayState, listener: socket.socket, ready: Callable[[GatewayServer], None]) -> None:
    server = _Server(_uvicorn_config(state), state, lambda stop: ready(_described(state, listener, stop)))
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, server.stop)
    maintenance = asyncio.create_task(_maintain(state))
    try:
        await server.serve(sockets=[listener])
    finally:
        maintenance.cancel()
        await asyncio.gather(maintenance, return_exceptions=True)


class _Server(uvicorn.Server):
    """Calls `ready` once connections are accepted. Signals are ours: uvicorn's own way ends by raising them again,
    before anything could be closed."""

    def __init__(
        self, config: uvicorn.Config, state: GatewayState, ready: Callable[[Callable[[], None]], None]
    ) -> None:
        super().__init__(config)
        self._state, self._ready = state, ready

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        gateway = self._state.config.gateway
        about: dict[str, Any] = {"config": self.config, "server_state": self.server_state}
        protocol, tls = partial(LimitedHttp, head_deadline_s=gateway.body_deadline_s, **about), _tls_context(gateway)
        self._listeners = [Listener(one, tls, self._state.connections, protocol) for one in sockets or []]
        self._ready(self.stop)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in self._listeners:
            one.stop()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            self._state.connections.sweep(time.monotonic())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(state: GatewayState) -> uvicorn.Config:
    return uvicorn.Config(
        build(state),
        http=LimitedHttp,
        ws=LimitedSocket,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=int(STOP_WITHIN_S) - 1,
    )


def _tls_context(gateway: GatewayConfig) -> ssl.SSLContext | None:
    if not gateway.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(gateway.tls_cert, gateway.tls_key)
    except OSError as error:
        do = "Give a certificate and its own key, both as PEM"
        raise ConfigError(f"they do not fit: {error}", where="[gateway] tls_cert", do=do) from None
    return context


def _described(state: GatewayState, listener: socket.socket, stop: Callable[[], None]) -> GatewayServer:
    gateway = state.config.gateway
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    mark = fingerprint(Path(gateway.tls_cert)) if gateway.tls_cert else None
    url = f"{'https' if gateway.tls_cert else 'http'}://{shown}:{port}"
    into = state.config.stream.url.partition("?")[0]
    return GatewayServer(url, state.registry.trust, state.identity.mode(), mark, into, stop)


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
    if gateway.tls_cert == SELF_SIGNED:
        certificate, key = self_signed(data, gateway.host, datetime.datetime.now(datetime.UTC))
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
    if not any(key.revoked_at_ms is None for key in ApiKeys(open_identity(config)).all()):
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
