"""Around every request: its id, the caller, the rate limit, the log line, and the headers of each answer.

`Middleware` wraps the whole application; `CallerCheck` wraps each endpoint and calls `admitted_caller`, which is the
one place where identity, rate, scope, Host and Origin are checked (the play socket calls it too).
"""

import itertools
import json
import logging
import secrets
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparring.errors import SparringError
from sparring.gateway.http_errors import BadRequest, NotFound, ServerBusy, TooMany, answer
from sparring.gateway.identity import NO_CALLER, PUBLIC, Caller, admit, check_host
from sparring.gateway.state import GatewayState

log = logging.getLogger("sparring.gateway")
requests = logging.getLogger("sparring.gateway.requests")

SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
)
SAFE = ("GET", "HEAD", "OPTIONS")
CORS = (  # for a game in a page of another site, which sends its token itself; browsers add no credential
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"etag, retry-after, x-request-id"),
)
PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, if-none-match, accept"),
    (b"access-control-max-age", b"3600"),
)


class Middleware:
    """The outermost layer: every request gets an answer, and no error reveals more than it must."""

    def __init__(self, app: ASGIApp, state: GatewayState) -> None:
        self._app, self._state = app, state
        self._boot, self._count = secrets.token_hex(4), itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # An id must be unique, not secret, so it costs no system call, which would also hand over the GIL.
        request = scope["request_id"] = f"{self._boot}{next(self._count):08x}"
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s, status = time.perf_counter(), 0
        cors = CORS if scope["path"].startswith("/v1/") and self._state.identity.mode() == "keys" else ()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*_with_headers(message.get("headers", []), request), *cors]
            await send(message)

        try:
            _check_framing(scope)
            if cors and scope["method"] == "OPTIONS":
                headers = {name.decode(): value.decode() for name, value in PREFLIGHT}
                await Response(None, 204, headers)(scope, receive, send_with_headers)
                return
            scope["app"] = self  # so that routes raise what they cannot answer, instead of answering in plain text
            await self._app(scope, receive, send_with_headers)
        except HTTPException as error:
            await answer(_not_found(scope["method"], error), request)(scope, receive, send_with_headers)
        except SparringError as error:
            await answer(error, request)(scope, receive, send_with_headers)
        except Exception:
            log.exception("request %s failed", request)
            if not status:
                broken = ServerBusy("something broke here", where="gateway", do=f"Tell the operator: request {request}")
                broken.status, broken.code = 500, "broken"
                await answer(broken, request)(scope, receive, send_with_headers)
        finally:
            self._log(scope, request, status, time.perf_counter() - begun_s)

    def _log(self, scope: Scope, request: str, status: int, seconds: float) -> None:
        endpoint = scope.get("endpoint_name", "other")
        self._state.metrics.request(endpoint, status, seconds)
        if requests.isEnabledFor(logging.INFO):
            caller: Caller = scope.get("caller", NO_CALLER)
            # Neither address nor agent nor query: the log must not tell who plays.
            line = {
                "request": request,
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "ms": round(seconds * 1e3, 2),
                "caller": "player" if caller.player else caller.id,
            }
            requests.info(json.dumps(line))


class CallerCheck:
    """Around one endpoint: admits callers that have its scope, and refuses the others before the body is read."""

    def __init__(self, app: ASGIApp, state: GatewayState, required_scope: str, name: str) -> None:
        self._app, self._state, self._required_scope, self._name = app, state, required_scope, name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["endpoint_name"] = self._name
        if self._required_scope == PUBLIC:
            _take_rate(_address(scope), self._state)
        else:
            scope["caller"] = admitted_caller(scope, self._state, self._required_scope)
        await self._app(scope, receive, send)


def admitted_caller(scope: Scope, state: GatewayState, required_scope: str) -> Caller:
    """Who calls, after the rate limit and the checks of scope, game, Host and Origin; raises the refusal otherwise."""
    headers, address = Headers(scope=scope), _address(scope)
    credential = headers.get("authorization", "") or _from_subprotocol(headers)
    caller = state.identity.caller(credential, address)
    _take_rate(caller.id if credential else address, state)
    admit(caller, required_scope, scope.get("path_params", {}).get("game"))
    changes = scope["type"] == "websocket" or scope["method"] not in SAFE
    check_host(caller, headers.get("host", ""), headers.get("origin") if changes else None)
    return caller


def _take_rate(who: str, state: GatewayState) -> None:
    if (wait_s := state.rates.take(who, time.monotonic())) > 0.0:
        raise TooMany("too many requests", where="rate", limit=state.rates.per_s, retry_s=wait_s)


def _address(scope: Scope) -> str:
    return (scope.get("client") or ("", 0))[0]


def _not_found(method: str, error: HTTPException) -> NotFound:
    if error.status_code != 405:
        return NotFound("there is nothing here", where="path", do="See /openapi.json", field="path")
    refusal = NotFound(f"it has no {method[:20]}", where="path", do="See /openapi.json", field="method")
    refusal.status, refusal.code = 405, "method"
    return refusal


def _from_subprotocol(headers: Headers) -> str:
    """A browser's WebSocket cannot send Authorization; it offers the subprotocol `bearer.<token>` instead."""
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        if offered.strip().startswith("bearer."):
            return "Bearer " + offered.strip().removeprefix("bearer.")
    return ""


def _check_framing(scope: Scope) -> None:
    """A request with two lengths, or a length and chunks, means one thing to us and another to a proxy."""
    names = [name for name, _ in scope["headers"] if name in (b"content-length", b"transfer-encoding", b"host")]
    if len(names) != len(set(names)) or (b"content-length" in names and b"transfer-encoding" in names):
        raise BadRequest("its length is said twice", where="head", do="Send one Content-Length", field="Content-Length")


def _with_headers(headers: Any, request: str) -> list[tuple[bytes, bytes]]:
    found = list(headers)
    present = {name.lower() for name, _ in found}
    found += [(name, value) for name, value in SECURITY if name not in present]
    found.append((b"x-request-id", request.encode()))
    return found
