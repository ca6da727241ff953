"""uvicorn's protocols of HTTP and WebSocket with the limits that they lack: of heads, trailers, requests sent ahead,
what follows an early answer, frames, messages and pings. A body's limits are in `request_body.py`."""

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from sparring.gateway.connections import Connection

DRAIN_S, DRAIN_BYTES = 2.0, 8 << 20  # of a body whose request was answered before it was there
MAX_HEAD_BYTES = 32 << 10
MAX_PIPELINED = 64  # requests sent ahead, before the answer to the one before them
MAX_FRAMES = 1_024  # of one WebSocket message; empty ones have no bytes that another limit would count
MAX_MESSAGES = 1_024  # of one play socket that wait for their turn
PINGS_PER_S = 64  # pings and pongs of one play socket
FRAMES_BYTES = 4 << 10  # of frames that are parsed at once: a frame may have two bytes and takes 10 us


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
