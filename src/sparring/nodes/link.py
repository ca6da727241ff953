"""One encrypted WebSocket between a parent and a node: who may connect, and messages with deadlines.

    wss://TOKEN@HOST:PORT#sha256:FINGERPRINT     a certificate that was made on first start, pinned
    wss://TOKEN@HOST:PORT                        one that this machine's authorities vouch for
    ws://TOKEN@127.0.0.1:PORT                    no encryption: on this machine alone

Either side may listen. The one that dials verifies the certificate before it sends the token; the one that listens
checks the token before it becomes a WebSocket. Sockets without a token are bounded in number and time by the gateway's
table of connections (gateway/connections.py).
"""

import asyncio
import datetime
import hashlib
import hmac
import logging
import random
import re
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from cryptography import x509
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection as WebSocket
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, WebSocketException
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from sparring.config import NodesConfig
from sparring.durable import replace_file
from sparring.errors import ConfigError, Refused, SparringError, Unreachable
from sparring.gateway.certificates import fingerprint, own_addresses, self_signed
from sparring.gateway.connections import Connection, Connections, Listener
from sparring.gateway.credentials import ApiKeys
from sparring.gateway.identity import is_loopback
from sparring.nodes.messages import Message, Refusal, decode, encode
from sparring.registry import open_objects

log = logging.getLogger(__name__)

PING_S, PONG_S = 5.0, 20.0  # a peer whose machine is gone is noticed after both
CLOSE_S = 2.0
DONE_CODE = 4000  # of a WebSocket that is closed because the run is done
NODE_SCOPE = "node"  # of an API key with which a machine may join
FIRST_WAIT_S = 0.5  # before somebody who was lost is dialled again; doubled each time
Expected = TypeVar("Expected")
_FINGERPRINT = re.compile(r"sha256:([0-9a-f]{64})")
quiet = logging.getLogger("sparring.nodes.websockets")  # a library's tracebacks about peers are no log lines of ours
quiet.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a parent or node listens, and how it is recognised."""

    host: str
    port: int
    token: str
    secure: bool = True
    sha256: str = ""  # of its certificate; "": authorities vouch for it

    def __str__(self) -> str:
        """As it is pasted: with the token."""
        mark = f"#sha256:{self.sha256}" if self.sha256 else ""
        return f"{'wss' if self.secure else 'ws'}://{quote(self.token)}@{self.place}{mark}"

    @property
    def place(self) -> str:
        """For messages: without the token."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(text: str, where: str) -> Address:
    """The address in a URL, or a ConfigError that does not show its token."""
    do = "Paste the line that `spar node --listen` or `spar train --accept-nodes` printed, in single quotes"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme not in ("ws", "wss"):
        raise ConfigError("it is no wss://TOKEN@HOST:PORT#sha256:FINGERPRINT", where=where, do=do)
    if not parts.username:
        raise ConfigError(f"{host}:{port} comes without a token", where=where, do=do)
    if parts.scheme == "ws" and not is_loopback(host):
        raise ConfigError(f"ws://{host} is not encrypted", where=where, do="Use wss://, beyond this machine")
    if parts.scheme == "ws" and parts.fragment:
        raise ConfigError("ws:// shows no certificate, and a fingerprint is given", where=where, do=do)
    mark = _FINGERPRINT.fullmatch(parts.fragment.replace(":", "").lower().replace("sha256", "sha256:", 1))
    if parts.fragment and mark is None:
        raise ConfigError("its fingerprint is no sha256: and 64 hex digits", where=where, do=do)
    return Address(host, port, unquote(parts.username), parts.scheme == "wss", mark[1] if mark else "")


def read_place(text: str, where: str) -> tuple[str, int]:
    """HOST:PORT, where to listen; port 0 picks a free one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535 or not host:
        raise ConfigError(f"{text!r} is no HOST:PORT", where=where, do="Write 0.0.0.0:8720, or 127.0.0.1:0")
    return host.strip("[]"), int(port)


class Tokens:
    """The token of this machine, in a file that only its owner reads: made on first start, and rotated at any time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "token"
        folder.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self.rotate()

    def rotate(self) -> str:
        """A new token; connections that are open stay, new ones need it."""
        replace_file(self.path, secrets.token_urlsafe(32).encode(), 0o600)
        return self.read()

    def read(self) -> str:
        return self.path.read_text().strip()

    def holder(self, shown: str) -> str:
        """Who shows that token; "": nobody. It is read each time, so that a rotation holds at once."""
        return "token" if hmac.compare_digest(self.read().encode(), shown.encode("utf-8", "replace")) else ""


def admission(tokens: Tokens, data: str) -> Callable[[str], str]:
    """The token of this machine, or an API key with the scope "node" (`spar keys create NAME --scopes node`), which can
    be revoked for one node alone."""
    keys = ApiKeys(open_objects(f"file:///{data}", "the data folder", mode=0o600))

    def admit(shown: str) -> str:
        if holder := tokens.holder(shown):
            return holder
        keys.look()
        key = keys.find(shown)
        return f"key:{key.id}" if key is not None and NODE_SCOPE in key.scopes else ""

    return admit


def server_tls(folder: Path, host: str, cert: str, key: str) -> tuple[ssl.SSLContext, str]:
    """How this side shows who it is, and the fingerprint to pin: "" where a certificate was given."""
    if bool(cert) != bool(key):
        raise ConfigError("a certificate and its key come together", where="--cert", do="Give --cert and --key")
    context, mark = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ""
    if not cert:
        folder.mkdir(parents=True, exist_ok=True)
        made = self_signed(folder, host, datetime.datetime.now(datetime.UTC))
        cert, key = map(str, made)
        mark = fingerprint(made[0]).replace(":", "").lower()
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        do = "Give a certificate and its own key, both as PEM"
        raise ConfigError(f"they do not fit: {error}", where="--cert", do=do) from None
    return context, mark


def shown_host(host: str) -> str:
    """An address at which others reach a socket that is bound to `host`."""
    if host not in ("0.0.0.0", "::", ""):
        return host
    return next((one for one in own_addresses() if not is_loopback(one)), "127.0.0.1")


class Link:
    """A connection over which messages go. One side at a time waits for the other, always for a limited time."""

    def __init__(self, websocket: WebSocket, peer: str) -> None:
        self._websocket, self.peer = websocket, peer
        self.sent_bytes = self.received_bytes = 0

    async def send(self, message: Message, within_s: float | None = None) -> None:
        await self.send_frame(encode(message), within_s)

    async def send_frame(self, frame: bytes, within_s: float | None = None) -> None:
        """A message that is encoded already."""
        self.sent_bytes += len(frame)
        with self._lost():
            async with asyncio.timeout(within_s):
                await self._websocket.send(frame)

    async def receive(self, within_s: float | None = None) -> Message:
        """The next message. Refused where it is a refusal, Unreachable where none came, WireError where it is none."""
        message = decode(await self.receive_frame(within_s))
        if isinstance(message, Refusal):
            raise Refused(message.sentence, where=self.peer, do="Correct what it names")
        return message

    async def receive_frame(self, within_s: float | None = None) -> bytes | str:
        """The next message as it came."""
        with self._lost():
            async with asyncio.timeout(within_s):
                frame = await self._websocket.recv()
        self.received_bytes += len(frame)
        return frame

    async def expect(self, kind: type[Expected], within_s: float | None) -> Expected:
        """The next message; Refused where it is not of that kind."""
        message = await self.receive(within_s)
        if not isinstance(message, kind):
            wrong = f"it sent {type(message).__name__}, not {kind.__name__}"
            raise Refused(wrong, where=self.peer, do="Use the same version of Sparring on both sides")
        return message

    async def refuse(self, sentence: str) -> None:
        """Tell the other side why, and close."""
        with suppress(SparringError):
            await self.send(Refusal(sentence[:1_000]), CLOSE_S)
        await self.close()

    async def close(self, why: str = "", code: int = 1000) -> None:
        with suppress(WebSocketException, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, why)
        self._websocket.transport.abort()

    @property
    def farewell(self) -> str:
        """Why the other side closed it, where that was because the run is done."""
        return self._websocket.close_reason or "" if self._websocket.close_code == DONE_CODE else ""

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise Unreachable("it said nothing in time", where=self.peer, do="It may connect again") from None
        except ConnectionClosed as error:
            why = f": {error.rcvd.reason}" if error.rcvd and error.rcvd.reason else ""
            if error.sent is not None and error.sent.code == 1009:
                why = ": its message was above the limit"
            raise Unreachable(f"the connection was closed{why}", where=self.peer, do="It may connect again") from None
        except (WebSocketException, OSError) as error:
            raise Unreachable(f"the connection broke: {error}", where=self.peer, do="It may connect again") from None


class _Pinned(ClientConnection):
    """Verifies the certificate by its fingerprint, before the token is sent."""

    def __init__(self, *about: Any, sha256: str, **more: Any) -> None:
        super().__init__(*about, **more)
        self._sha256 = sha256

    async def handshake(self, *about: Any, **more: Any) -> None:
        if self._sha256:
            shown = self.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            do = "Paste its line again; if it did not change there, something is between you and it"
            if hashlib.sha256(shown).hexdigest() != self._sha256:
                raise Refused("its certificate has another fingerprint", where="TLS", do=do)
            until = x509.load_der_x509_certificate(shown).not_valid_after_utc
            if until < datetime.datetime.now(datetime.UTC):
                raise Refused(f"its certificate expired on {until:%Y-%m-%d}", where="TLS", do="Restart it there")
        await super().handshake(*about, **more)


async def dial(address: Address, max_bytes: int, within_s: float) -> Link:
    """A link to whoever listens there. Unreachable where nobody answers, Refused where it is another or refuses."""
    context: ssl.SSLContext | None = None
    if address.secure:
        context = ssl.create_default_context()
        if address.sha256:  # the pin says more than any authority
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"{'wss' if address.secure else 'ws'}://{address.place}/"
    try:
        websocket = await connect(
            url,
            ssl=context,
            additional_headers={"Authorization": f"Bearer {address.token}"},
            create_connection=partial(_Pinned, sha256=address.sha256),  # type: ignore[arg-type]
            max_size=max_bytes,
            open_timeout=within_s,
            logger=quiet,
            **_SOCKET,
        )
    except Refused as error:
        raise Refused(error.wrong, where=address.place, do=error.do) from None
    except ssl.SSLCertVerificationError as error:
        do = "Paste its line with the fingerprint, or give it a certificate that this machine trusts"
        raise Refused(f"its certificate does not verify: {error.verify_message}", where=address.place, do=do) from None
    except InvalidStatus as error:
        said = (error.response.body or b"").decode(errors="replace")[:200]
        wrong = said or f"it answered {error.response.status_code}"
        raise Refused(wrong, where=address.place, do="Paste its line again: tokens can be rotated") from None
    except (WebSocketException, OSError, TimeoutError) as error:
        wrong, do = f"no answer ({type(error).__name__})", "Check that it runs, and that its port is open"
        if isinstance(error, InvalidMessage) and not address.secure:
            wrong, do = "no answer in plain HTTP", "Paste its line again: it may begin with wss://"
        raise Unreachable(wrong, where=address.place, do=do) from None
    return Link(websocket, address.place)


def redial_wait_s(tries: int, most_s: float) -> float:
    """Until somebody is dialled again after so many tries in vain, with jitter."""
    return min(most_s, FIRST_WAIT_S * 2.0 ** min(tries, 20)) * random.uniform(0.5, 1.0)


_SOCKET: dict[str, Any] = {
    "compression": None,
    "proxy": None,
    "ping_interval": PING_S,
    "ping_timeout": PONG_S,
    "close_timeout": CLOSE_S,
    "max_queue": 2,
}


@dataclass(frozen=True, slots=True)
class Door:
    """Where others may come in: a bound socket, a certificate, and who may."""

    listening: socket.socket
    tls: ssl.SSLContext | None
    admit: Callable[[str], str]  # who shows that token; "": nobody


class Server:
    """Accepts links. It is also what a ServerConnection of websockets needs of its server."""

    def __init__(
        self, door: Door, session: Callable[[Link, str], Awaitable[None]], config: NodesConfig, max_bytes: int
    ) -> None:
        """`session` gets each link, and who showed its token. Sockets that showed none are half of the connections at
        most; no message is above `max_bytes`."""
        self._max_bytes, self._handshake_s, most = max_bytes, config.handshake_s, config.connections
        self._admit, self._session = door.admit, session
        self.table = Connections(most, most, most, lambda _: False)
        self.handler_tasks: set[asyncio.Task[None]] = set()
        self._listener = Listener(door.listening, door.tls, self.table, self._made)
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    def is_serving(self) -> bool:
        return True

    async def close(self) -> None:
        """Accept no more, and end what is open."""
        self._listener.stop()
        self._sweeper.cancel()
        for task in tuple(self.handler_tasks):
            task.cancel()
        await asyncio.gather(self._sweeper, *self.handler_tasks, return_exceptions=True)

    def _made(self, connection: Connection) -> asyncio.Protocol:
        return _Accepted(ServerProtocol(max_size=self._max_bytes, logger=quiet), self, connection)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.table.sweep(time.monotonic())

    async def handler(self, websocket: ServerConnection) -> None:
        """One connection from its first byte of HTTP to its end."""
        assert isinstance(websocket, _Accepted)
        try:
            async with asyncio.timeout(self._handshake_s):
                await websocket.handshake(self._process, server_header=None)
            if websocket.protocol.state is not State.OPEN:
                return
            websocket.start_keepalive()
            peer = websocket.remote_address
            link = Link(websocket, f"{peer[0]}:{peer[1]}" if peer else "somebody")
            await self._session(link, websocket.holder)
            await link.close()
        except (TimeoutError, WebSocketException, OSError) as error:
            log.debug("a connection ended: %s", error)
        finally:
            websocket.transport.abort()
            self.handler_tasks.discard(asyncio.current_task())

    def _process(self, websocket: ServerConnection, request: Request) -> Response | None:
        assert isinstance(websocket, _Accepted)
        shown = request.headers.get("Authorization", "")
        websocket.holder = self._admit(shown.removeprefix("Bearer ")) if shown.startswith("Bearer ") else ""
        if not websocket.holder:
            return websocket.respond(401, "its token does not hold")
        self.table.protect(websocket.entry, websocket.holder)
        websocket.entry.busy = True
        return None


class _Accepted(ServerConnection):
    """A connection in the table of connections."""

    def __init__(self, protocol: ServerProtocol, server: Server, entry: Connection) -> None:
        super().__init__(
            protocol,
            server,  # type: ignore[arg-type]
            ping_interval=PING_S,
            ping_timeout=PONG_S,
            close_timeout=CLOSE_S,
            max_queue=2,
        )
        self.entry, self.holder = entry, ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.entry.transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.entry.table.remove(self.entry)
        super().connection_lost(exc)
