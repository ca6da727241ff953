"""Limits on every request: the size and time of its head and of its body, and JSON that every parser reads alike."""

import asyncio
import json
from typing import Any, NoReturn, TypeVar

import msgspec
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sparring.gateway.http_errors import BadRequest, TooLarge, TooLate

Shape = TypeVar("Shape")

MAX_CALL_BYTES = 1 << 20  # of a JSON call other than an upload
MAX_HEAD_BYTES = 32 << 10


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's own waits for ever for a head, however long it grows. `read_body` limits bodies."""

    head_deadline_s = 20.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # received while a head is awaited

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        # What came with a head may be its body; only a head that is still not there is too long.
        if self._deadline is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"A head of more than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._have_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._deadline = asyncio.get_running_loop().call_later(self.head_deadline_s, self._expired)

    def _have_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


async def read_body(request: Request, limit_bytes: int, deadline_s: float) -> bytes:
    """The whole body; TooLarge before it is read where it says its length, TooLate after the deadline."""
    claimed = request.headers.get("content-length")
    if claimed is not None and (not claimed.isascii() or not claimed.isdigit() or int(claimed[:20]) > limit_bytes):
        raise _too_large(claimed[:20], limit_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(deadline_s):
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise BadRequest("the caller went away", where="body", do="Send it again")
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size > limit_bytes:
                    raise _too_large(f"{size} or more", limit_bytes)
                parts.append(part)
    except TimeoutError:
        wrong = f"{size} bytes came in {deadline_s:.0f} s"
        raise TooLate(wrong, where="body", do="Send it faster", limit=deadline_s) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_json(body: bytes) -> Any:
    """JSON that every parser reads alike: no key twice, no NaN or Infinity, UTF-8 alone, no endless nesting."""
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_word)
    except (ValueError, RecursionError) as error:
        wrong = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not JSON: {error}"
        raise BadRequest(wrong[:300], where="body", do="Send one JSON object in UTF-8", field="body") from None


def shaped(value: Any, shape: type[Shape], where: str = "body") -> Shape:
    """`value` as that type, or a BadRequest that names the path to what does not fit."""
    try:
        return msgspec.convert(value, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadRequest(str(error)[:300], where=where, do="See /openapi.json", field=_path(str(error))) from None


async def read_call(request: Request, shape: type[Shape], deadline_s: float) -> Shape:
    """The JSON body of a call as that type."""
    return shaped(read_json(await read_body(request, MAX_CALL_BYTES, deadline_s)), shape)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _no_word(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _path(message: str) -> str:
    return message.rpartition("`$")[2].strip("`.") if "`$" in message else ""


def _too_large(found: str, limit_bytes: int) -> TooLarge:
    wrong = f"{found} bytes, the limit is {limit_bytes}"
    do = "Send fewer chunks at once"
    return TooLarge(wrong, where="body", do=do, field="Content-Length", value=found, limit=limit_bytes)
