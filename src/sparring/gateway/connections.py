"""Every connection: how many there may be, which of them are closed for new ones, and a deadline for each state.

A connection over which a valid key or token came is protected, up to `per_caller` of them for each key or token. All
others can be closed when another one arrives: the oldest of the same address above `per_address`, one of the oldest
over which no key came above STRANGERS_SHARE of `most`, one of the oldest of all above `most`. So a caller with a key
gets in however many sockets are held open without one, and nothing is refused while there is room.

State of a connection → its deadline: before the first byte of a TLS handshake, and from there to its end (HANDSHAKE_S
each), a request's head (`head_deadline_s`) and the rest of a body after an early answer (`limited_protocols.py`), its
body (`request_body.py`), idle (IDLE_S), an answer that is not read and closing (UNREAD_S), a play socket before its
first message (`play.py`); later uvicorn pings it. TLS takes some 55 kB, from the first byte on; at most HANDSHAKES are
under way.
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
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

from sparring.errors import ConfigError

log = logging.getLogger(__name__)

BACKLOG = 2_048  # connections that wait to be accepted
ACCEPTED_AT_ONCE = 8  # before those that are open are served again
HANDSHAKE_S = 10.0
HANDSHAKES = 1_024  # TLS handshakes at once; one of the oldest is ended for the next
IDLE_S = 75  # a kept-alive connection may be quiet for so long
UNREAD_S, READ_BYTES = 20.0, 16 << 10  # a peer that reads less of an answer in that time is disconnected
OTHER_FILES = 256  # that the process may have open beside connections
PROTECTED_SHARE = 7 / 8  # of all connections; the rest is for newcomers, who have not yet said who they are
STRANGERS_SHARE = 1 / 2  # of all connections: those that sent no key. With TLS and half a head each takes 90 kB
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


@contextlib.contextmanager
def bound(host: str, port: int, where: str = "[gateway] port", option: str = "--port 0") -> Iterator[socket.socket]:
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
            raise ConfigError(wrong, where=where, do=f"Stop what uses it, or give {option}") from None
        yield listener
    finally:
        listener.close()


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
