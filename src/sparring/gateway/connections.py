"""Every connection: how many there may be, which of them are closed for new ones, and a deadline for each state.

A connection over which a valid key or token came is protected, up to `per_caller` of them for each key or token. All
others can be closed when another one arrives: the oldest of the same address above `per_address`, one of the oldest
over which no key came above STRANGERS_SHARE of `most`, one of the oldest of all above `most`. So a caller with a key
gets in however many sockets are held open without one, and nothing is refused while there is room.

State of a connection → its deadline: before the first byte of a TLS handshake, and from there to its end (HANDSHAKE_S
each), a request's head (`head_deadline_s`), its body (`request_body.py`), the rest of a body after an early answer
(DRAIN_S), idle (IDLE_S), an answer that is not read and closing (UNREAD_S), a play socket before its first message
(`play.py`); later uvicorn pings it. TLS takes some 55 kB, from the first byte on; at most HANDSHAKES are under way.
"""

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import resource
import socket
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

log = logging.getLogger(__name__)

BACKLOG = 2_048  # connections that wait to be accepted
ACCEPTED_AT_ONCE = 8  # before those that are open are served again
HANDSHAKE_S = 10.0
HANDSHAKES = 1_024  # TLS handshakes at once; one of the oldest is ended for the next
IDLE_S = 75  # a kept-alive connection may be quiet for so long
DRAIN_S, DRAIN_BYTES = 2.0, 8 << 20  # of a body whose request was answered before it was there
UNREAD_S, READ_BYTES = 20.0, 16 << 10  # a peer that reads less of an answer in that time is disconnected
MAX_HEAD_BYTES = 32 << 10
MAX_PIPELINED = 64  # requests sent ahead, before the answer to the one before them
MAX_FRAMES = 1_024  # of one WebSocket message; empty ones have no bytes that another limit would count
MAX_MESSAGES = 1_024  # of one play socket that wait for their turn
PINGS_PER_S = 64  # pings and pongs of one play socket
FRAMES_BYTES = 4 << 10  # of frames that are parsed at once: a frame may have two bytes and takes 10 us
OTHER_FILES = 256  # that the process may have open beside connections
PROTECTED_SHARE = 7 / 8  # of all connections; the rest is for newcomers, who have not yet said who they are
STRANGERS_SHARE = (
    1 / 2
)  # of all connections: those over which no key came. With TLS and an unfinished head each takes 90 kB
LOOKED_AT = 64  # connections that are asked whether they can be closed for a new one
SAY_EVERY_S = 60.0  # a limit that is reached is logged once in this time


def raise_file_limit(connections: int) -> int:
    """Let this process open that many connections; how many it can, which is said where it is fewer."""
    soft, hard = (limit if limit != resource.RLIM_INFINITY else 1 << 30 for limit in _file_limits())
    needed = connections + OTHER_FILES
    if soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), _file_limits()[1]))
            soft = min(needed, hard)
        except (ValueError, OSError):
            log.debug("the file limit stays at %d", soft)
    room = min(connections, max(soft - OTHER_FILES, soft // 2))
    if room < connections:
        text = "the file limit of %d allows %d connections, not gateway.connections = %d: raise it (ulimit -n %d)"
        log.warning(text, soft, room, connections, needed)
    return room


def _file_limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


@lru_cache(maxsize=65_536)
def network_of(address: str) -> str:
    """What is counted as one address: an IPv4 address, or the /64 network that one subscriber has of IPv6."""
    found = parsed_address(address)
    if found is None or found.version == 4:
        return str(found or address)
    return str(ipaddress.ip_network((found, 64), strict=False))


def parsed_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address; an IPv4 one also where a socket for both kinds shows it as IPv6. None: it is none."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


class Connection:
    """One open connection. `busy`: a whole request of it is being answered, or it is a play socket."""

    __slots__ = ("address", "busy", "caller", "marked_s", "socket", "table", "transport", "unsent_bytes")

    def __init__(self, accepted: socket.socket, address: str, table: "Connections") -> None:
        self.socket, self.address, self.table = accepted, address, table
        self.transport: asyncio.Transport | None = None  # there is none before the TLS handshake is done
        self.caller, self.busy = "", False
        self.unsent_bytes, self.marked_s = 0, 0.0  # what its peer had not read yet, and when that was noted

    @property
    def holder(self) -> str:
        """The caller whose key or token came over it last, else its address; "" for a proxy's."""
        return self.caller or self.address

    def abort(self) -> None:
        """Close it at once; what was not sent is lost."""
        if self.transport is not None:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class Connections:
    """The open connections, and which are protected."""

    def __init__(self, most: int, per_address: int, per_caller: int, is_proxy: Callable[[str], bool]) -> None:
        """Behind a proxy are many callers: its connections are not counted by address."""
        self.most, self.per_address, self.per_caller, self._is_proxy = most, per_address, per_caller, is_proxy
        self.closed_early: Counter[str] = Counter()  # limit → connections closed or refused for it
        self._open: set[Connection] = set()
        self._protected: dict[str, dict[Connection, None]] = {}  # by caller; the one last used is last
        self._unprotected: OrderedDict[Connection, None] = OrderedDict()  # the oldest first
        self._strangers: OrderedDict[Connection, None] = OrderedDict()  # those over which no key came, of no proxy
        self._by_holder: dict[str, dict[Connection, None]] = {}  # the unprotected ones
        self._handshakes: dict[Connection, None] = {}  # under way, the oldest first
        self._said_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def protected(self) -> int:
        return len(self._open) - len(self._unprotected)

    def add(self, accepted: socket.socket, peer: str) -> Connection | None:
        """A new connection; None where there is no room and none can be closed for it."""
        made = Connection(accepted, "" if self._is_proxy(peer) else network_of(peer), self)
        others = self._by_holder.get(made.address, {})
        if made.address and len(others) >= self.per_address:
            self.say("connections_per_address", f"{self.per_address} connections of one address showed no key")
            if not self._close_one(others):
                return None
        if made.address and len(self._strangers) >= self.most * STRANGERS_SHARE:
            self.say("connections_without_key", f"{len(self._strangers)} connections showed no key")
            if not self._close_one(self._strangers):
                return None
        if len(self._open) >= self.most:
            self.say("connections", f"{self.most} connections are open, {self.protected} of them showed a key")
            if not self._close_one(self._unprotected):
                return None
        self._open.add(made)
        self._unprotected[made] = self._by_holder.setdefault(made.holder, {})[made] = None
        if made.address:
            self._strangers[made] = None
        return made

    def protect(self, connection: Connection, caller: str) -> None:
        """A valid key or token of that caller came over it. Above `per_caller` the one that the caller used least
        recently is no longer protected."""
        mine = self._protected.get(caller, {})
        if connection not in self._open or (len(mine) == 1 and connection in mine):
            return
        self._forget(connection)
        self._strangers.pop(connection, None)
        connection.caller = caller
        mine = self._protected.setdefault(caller, {})
        mine[connection] = None
        if len(mine) > self.per_caller or self.protected > self.most * PROTECTED_SHARE:
            oldest = next(iter(mine))
            self._forget(oldest)
            self._unprotected[oldest] = self._by_holder.setdefault(caller, {})[oldest] = None
            self._unprotected.move_to_end(oldest, last=False)

    def begin_handshake(self, connection: Connection) -> None:
        """It takes the memory of TLS from now on; another one is closed where HANDSHAKES do."""
        if len(self._handshakes) >= HANDSHAKES:
            self.say("handshakes", f"{HANDSHAKES} TLS handshakes were under way")
            self._close_one(self._handshakes)
        self._handshakes[connection] = None

    def end_handshake(self, connection: Connection) -> None:
        """It is done, or failed."""
        self._handshakes.pop(connection, None)

    def remove(self, connection: Connection) -> None:
        """It is closed, or about to be."""
        self.end_handshake(connection)
        self._strangers.pop(connection, None)
        if connection in self._open:
            self._open.remove(connection)
            self._forget(connection)

    def sweep(self, now_s: float) -> None:
        """Once a second: end connections whose peers do not read."""
        for one in tuple(self._open):
            if one.transport is None:
                continue
            unsent = one.transport.get_write_buffer_size()
            if not unsent and not one.transport.is_closing():
                one.marked_s = 0.0
            elif not one.marked_s or unsent + READ_BYTES <= one.unsent_bytes:
                one.unsent_bytes, one.marked_s = unsent, now_s
            elif now_s - one.marked_s > UNREAD_S:
                one.abort()

    def say(self, limit: str, sentence: str) -> None:
        """Count that a limit was reached, and log it, once a minute. No address is logged."""
        self.closed_early[limit] += 1
        if time.monotonic() - self._said_s.get(limit, -SAY_EVERY_S) >= SAY_EVERY_S:
            self._said_s[limit] = time.monotonic()
            log.warning("limit %s: %s (%d times so far)", limit, sentence, self.closed_early[limit])

    def _close_one(self, among: Iterable[Connection]) -> bool:
        """Close one of the oldest that are not being answered: of the holder that has the most of them."""
        can_go = tuple(itertools.islice((one for one in among if not one.busy), LOOKED_AT))
        if can_go:
            first = max(can_go, key=lambda one: len(self._by_holder[one.holder]) if one.holder else 0)
            self.remove(first)
            first.abort()
        return bool(can_go)

    def _forget(self, connection: Connection) -> None:
        """Take it out of the group that it is in."""
        groups = self._by_holder if connection in self._unprotected else self._protected
        holder = connection.holder
        del groups[holder][connection]
        if not groups[holder]:
            del groups[holder]
        self._unprotected.pop(connection, None)


class Listener:
    """Accepts connections. An event loop's own server would count none before its TLS handshake is done, and uvloop's
    closes new ones without telling anyone while no file can be opened."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        table: Connections,
        protocol: Callable[[Connection], asyncio.Protocol],
    ) -> None:
        self._listening, self._tls, self._table, self._protocol = listening, tls, table, protocol
        self._loop = asyncio.get_running_loop()
        self._begun: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        listening.listen(BACKLOG)
        listening.setblocking(False)
        self._watch()

    def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)

    def _watch(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # most likely no file is left: those that arrive wait for one
                self._table.say("files", f"no connection can be accepted: {error.strerror}; raise the file limit")
                self._loop.remove_reader(self._listening)
                self._again = self._loop.call_later(1.0, self._watch)
                return
            connection = self._table.add(accepted, str(peer[0]))
            if connection is None:
                accepted.close()
                continue
            task = self._loop.create_task(self._open(connection))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def _open(self, connection: Connection) -> None:
        deadlines = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": UNREAD_S} if self._tls else {}
        protocol = partial(self._protocol, connection)
        try:
            if self._tls is not None:
                async with asyncio.timeout(HANDSHAKE_S):
                    await self._first_byte(connection.socket)
                self._table.begin_handshake(connection)
            await self._loop.connect_accepted_socket(protocol, connection.socket, ssl=self._tls, **deadlines)
        except OSError:  # it speaks no TLS, was too slow, or is gone
            pass
        finally:
            self._table.end_handshake(connection)
            if connection.transport is None:
                self._table.remove(connection)
                connection.socket.close()

    async def _first_byte(self, accepted: socket.socket) -> None:
        """Wait for it, without reading it; ConnectionError where the connection ends before."""
        came: asyncio.Future[None] = self._loop.create_future()
        accepted.setblocking(False)
        self._loop.add_reader(accepted, _tell, came)
        try:
            await came
        finally:
            self._loop.remove_reader(accepted)
        if not accepted.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError


def _tell(came: "asyncio.Future[None]") -> None:
    if not came.done():
        came.set_result(None)


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's own waits for ever for a head, however long it grows, keeps every trailer, queues requests without a
    limit, and reads on for ever after an answer that came before its request's end. `request_body.py` limits bodies."""

    def __init__(self, connection: Connection, head_deadline_s: float, **about: Any) -> None:
        super().__init__(**about, app_state={"connection": connection})  # which is in each request's scope["state"]
        self._connection, self._head_deadline_s = connection, head_deadline_s
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # received while a head is awaited
        self._in_body = False  # from the end of a head to that of its request
        self._frame_bytes = 0  # received there without a byte of the body: chunk sizes, and trailers
        self._left_bytes: int | None = None  # that a request which was answered already may still send

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.transport = transport
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """In pieces, so that no more is parsed than the limits of what is no body allow."""
        for at in range(0, len(data), MAX_HEAD_BYTES):
            if self.transport.get_protocol() is not self:  # it became a play socket, which was given the rest
                break
            self._receive(data[at : at + MAX_HEAD_BYTES] if len(data) > MAX_HEAD_BYTES else data)
            if self.transport.is_closing():
                break

    def _receive(self, data: bytes) -> None:
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                self._expired()
                return
        elif self._deadline is not None:
            self._head_bytes += len(data)
        self._frame_bytes += len(data)
        super().data_received(data)
        if self._in_body and self._frame_bytes > MAX_HEAD_BYTES:
            self._expired()
            return
        # What came with a head may be its body; only a head that is still not there is too long.
        too_long = self._deadline is not None and self._head_bytes > MAX_HEAD_BYTES
        if too_long and not self.transport.is_closing():
            self.send_400_response(f"A head of more than {MAX_HEAD_BYTES} bytes.")
        idle = self.cycle is not None and self.cycle.response_complete and self in self.connections
        if idle and self._deadline is None and self.timeout_keep_alive_task is None:
            self._await_head()  # an empty line between two requests begins none, but it ended the idle time

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # a trailer means nothing here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            raise ValueError(f"more than {MAX_PIPELINED} requests ahead")  # ends the parser
        self._have_head()
        self._in_body, self._frame_bytes = True, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._frame_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._left_bytes is not None:
            self._have_head()
        super().on_message_complete()
        if self.cycle is not None:
            self._connection.busy = not self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._connection.busy = not self.cycle.response_complete and not self._in_body
        if self.pipeline:
            self.flow.pause_reading()  # until those are answered that are here already
        if self._in_body and self.cycle.response_complete and not self.transport.is_closing():
            # Its caller may still be sending, and hears the answer only if that is read for a moment.
            self._have_head()
            self._left_bytes = DRAIN_BYTES
            self._deadline = asyncio.get_running_loop().call_later(DRAIN_S, self._expired)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connection.marked_s = 0.0  # it reads

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.table.remove(self._connection)
        self._have_head()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._deadline = asyncio.get_running_loop().call_later(self._head_deadline_s, self._expired)

    def _have_head(self) -> None:
        self._left_bytes = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class LimitedSocket(WebSocketsSansIOProtocol):
    """uvicorn's own keeps any number of messages and of a message's empty frames, and answers any number of pings, also
    those whose answers are not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connection: Connection = self.app_state["connection"]
        self._connection.busy = True
        self._pings, self._pings_since_s = 0, 0.0

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), FRAMES_BYTES):
            if self.transport.is_closing():
                break
            super().data_received(data[at : at + FRAMES_BYTES])

    def handle_ping(self) -> None:
        if self._ping_allowed():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._ping_allowed():
            super().handle_pong(event)

    def _ping_allowed(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._pings_since_s > 1.0:
            self._pings, self._pings_since_s = 0, now_s
        self._pings += 1
        if self._pings > PINGS_PER_S:
            self.transport.abort()
        return self._pings <= PINGS_PER_S

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.table.remove(self._connection)
        super().connection_lost(exc)

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) > MAX_FRAMES:
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:  # uvicorn's own would write a traceback to the log
                self.conn.fail(1007, "not UTF-8")
                self.handle_parser_exception()
                return
        if self.queue.qsize() >= MAX_MESSAGES:
            self.frames = []
            self.transport.abort()
            return
        super().send_receive_event_to_app()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connection.marked_s = 0.0
        if not self.read_paused:
            self.transport.resume_reading()
