"""The application: a table of every endpoint (its path, who may call it, its query and body, what answers), the routes
made from that table, the dashboard's pages, and the play socket. `openapi.py` describes the table as /openapi.json.

`CallerCheck` wraps each endpoint; `Middleware` wraps everything: a request's id, its log line, the headers of each
answer, and the HTTP form of every error.
"""

import asyncio
import functools
import inspect
import itertools
import json
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparring.dashboard.app import Dashboard, GameQuery, MetricsQuery, page_routes
from sparring.dashboard.league import MatchQuery
from sparring.errors import SparringError
from sparring.gateway import handlers
from sparring.gateway.http_errors import HOLD_S, BadRequest, NotFound, ServerBusy, TooMany, answer, json_response
from sparring.gateway.identity import NO_CALLER, PUBLIC, READ_GAME, SELF, Caller
from sparring.gateway.openapi import Endpoint, Handler, describe
from sparring.gateway.play import Play
from sparring.gateway.rate_limits import Rates
from sparring.gateway.request_body import read_query
from sparring.gateway.state import GatewayState
from sparring.gateway.uploads import BINARY, JsonUpload, post_chunks

log = logging.getLogger("sparring.gateway")
requests = logging.getLogger("sparring.gateway.requests")

LINES_PER_S, LINES_AT_ONCE = 20.0, 1_000.0  # of the log, for requests that no caller was admitted with
HEADERS = {  # of every answer that does not set its own
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
CORS = {  # for a game in a page of another site, which sends its token itself; browsers add no credential
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "etag, retry-after, x-request-id",
}
PREFLIGHT = {
    "access-control-allow-methods": "GET, POST, DELETE",
    "access-control-allow-headers": "authorization, content-type, if-none-match, accept, spar-player",
    "access-control-max-age": "3600",
}


async def get_openapi(request: Request, state: GatewayState) -> Response:
    """The description of everything under this address."""
    return Response(_document(), media_type="application/json")


@functools.cache
def _document() -> bytes:
    return msgspec.json.encode(describe(ENDPOINTS, SOCKET))


def _of_dashboard(read: Callable[[Dashboard, Request], Any]) -> Handler:
    @functools.wraps(read)
    def handler(request: Request, state: GatewayState) -> Any:
        return read(state.dashboard, request)

    return handler


_UPLOAD_ERRORS = {
    **{404: "No such game", 409: "Another content is stored under that key", 410: "The player was erased"},
    **{422: "A chunk breaks its spec", 507: "The disk is full"},
}
_FILES = tuple(dict.fromkeys(handlers.FILES.values()))

_GAME = "/v1/games/{game}"
SOCKET = f"{_GAME}/play"
ENDPOINTS = (
    # The most frequent calls first: routes are tried in this order.
    Endpoint("POST", f"{_GAME}/chunks", "record", post_chunks, "Upload chunks; an ok means on disk", body=JsonUpload,
             raw_body=BINARY, errors=_UPLOAD_ERRORS),
    Endpoint("POST", f"{_GAME}/act", "act", handlers.post_act, "One observation, one action", body=handlers.ActCall,
             errors={404: "No such game or model", 422: "Not a view of that seat"}),
    Endpoint("GET", "/healthz", PUBLIC, handlers.get_health, "The process answers"),
    Endpoint("GET", "/readyz", PUBLIC, handlers.get_readiness, "The store takes writes"),
    Endpoint("GET", "/openapi.json", PUBLIC, get_openapi, "This description", raw_answers=("application/json",)),
    Endpoint("GET", "/metrics", "read", handlers.get_metrics, "Counters, as Prometheus reads them",
             raw_answers=("text/plain", "application/openmetrics-text")),
    Endpoint("GET", "/v1/games", "read", handlers.list_games, "The games that are served"),
    Endpoint("GET", f"{_GAME}/champion", READ_GAME, handlers.get_champion, "The signed manifest of the champion",
             handlers.ChampionQuery, errors={304: "Not changed", 404: "There is none yet"}),
    Endpoint("GET", f"{_GAME}/strengths", READ_GAME, handlers.get_strengths, "The signed ladder of strengths",
             handlers.VersionQuery, errors={404: "There is none yet"}),
    Endpoint("POST", f"{_GAME}/tokens", "admin", handlers.post_token, "A short-lived token for one player",
             body=handlers.TokenRequest, errors={404: "No such game", 422: "Too long a life"}),
    Endpoint("GET", f"{_GAME}/players/me", SELF, handlers.get_me, "What is kept of the caller",
             raw_answers=(BINARY, handlers.JSON_LINES), errors={404: "No such game", 410: "They were erased"}),
    Endpoint("DELETE", f"{_GAME}/players/me", SELF, handlers.delete_me, "Remove all that is kept of the caller",
             errors={404: "No such game", 507: "The disk is full"}),
    Endpoint("GET", "/v1/models/{model}/{file}", READ_GAME, handlers.get_model_file, "A model's file; it never changes",
             handlers.FileQuery, raw_answers=_FILES,
             errors={307: "With direct=1: get it there", 304: "Not changed", 404: "No such model or file",
                     503: "Try again later"}),
    # After the others that begin like it: {game} would match their paths.
    Endpoint("GET", _GAME, READ_GAME, handlers.get_game, "A game's spec", handlers.VersionQuery,
             errors={404: "No such game or version"}),
    # What the pages show.
    Endpoint("GET", "/api/games", READ_GAME, _of_dashboard(Dashboard.get_game_rows),
             "Every game (of a player token: its own), what was played of it"),
    Endpoint("GET", "/api/models", "read", _of_dashboard(Dashboard.get_model_rows), "A game's models, ranked",
             GameQuery, errors={404: "No such game"}),
    Endpoint("GET", "/api/promotions", "read", _of_dashboard(Dashboard.get_promotions), "Who became champion, and why"),
    Endpoint("GET", "/api/runs", "read", _of_dashboard(Dashboard.get_run_rows), "Training runs"),
    Endpoint("GET", "/api/runs/{run}/metrics", "read", _of_dashboard(Dashboard.get_run_metrics), "A run's metrics",
             MetricsQuery, errors={404: "No such run"}),
    Endpoint("GET", "/api/stats", "read", _of_dashboard(Dashboard.get_stats), "What the store holds of a game",
             GameQuery, errors={404: "No such game"}),
    Endpoint("GET", "/api/league/{game}/matches/{match}", "read", _of_dashboard(Dashboard.get_match_game),
             "A game of a match, move by move, played again from its seed", MatchQuery,
             errors={404: "No such game or match, or a member's model is gone"}),
    # After the one that begins like it.
    Endpoint("GET", "/api/league/{game}", "read", _of_dashboard(Dashboard.get_league),
             "A game's league: ladder, payoff matrix, rating curves, newest matches", errors={404: "No such game"}),
    Endpoint("GET", "/api/minutes", "read", _of_dashboard(Dashboard.get_minutes), "The last hour of the sink"),
    Endpoint("GET", "/api/nodes", "read", _of_dashboard(Dashboard.get_node_rows), "Machines that joined a run"),
    Endpoint("POST", "/api/nodes", "admin", handlers.post_node_order, "Drain, ban or allow a node",
             body=handlers.NodeOrder, errors={404: "It is neither drained nor banned"}),
)  # fmt: skip


for _one in ENDPOINTS:  # made ready before threads use them: docs/decisions/0330
    for _type in filter(None, (_one.body, _one.query)):
        msgspec.json.Decoder(_type)


def build(state: GatewayState) -> ASGIApp:
    """The whole gateway as an ASGI application. The caller closes what `state` holds."""
    socket = WebSocketRoute(SOCKET.replace("{game}", "{game:path}"), Play(state))
    routes: list[BaseRoute] = [socket, *(_route(one, state) for one in ENDPOINTS), *_pages(state)]
    return Middleware(Router(routes, redirect_slashes=False), state)


def _route(endpoint: Endpoint, state: GatewayState) -> Route:
    async def respond(request: Request) -> Response:
        if endpoint.query is not None:
            request.scope["query"] = read_query(request, endpoint.query)
        if inspect.iscoroutinefunction(endpoint.handler):
            found = await endpoint.handler(request, state)
        else:
            found = await run_in_threadpool(endpoint.handler, request, state)
        return found if isinstance(found, Response) else json_response(found, headers=handlers.NO_STORE)

    route = Route(endpoint.pattern, respond, methods=[endpoint.method])
    route.app = CallerCheck(route.app, state, endpoint.scope, endpoint.name)
    return route


def _pages(state: GatewayState) -> list[Route]:
    """The pages are public; the data that they show is not."""
    routes = page_routes()
    for route in routes:
        route.app = CallerCheck(route.app, state, PUBLIC, "pages")
    return routes


class Middleware:
    """The outermost layer: every request gets an answer, and no error reveals more than it must."""

    def __init__(self, app: ASGIApp, state: GatewayState) -> None:
        self._app, self._state = app, state
        self._boot, self._count = secrets.token_hex(4), itertools.count(1)
        self._lines, self._unlogged = Rates(LINES_PER_S, LINES_AT_ONCE), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # An id must be unique, not secret, so it costs no system call, which would also hand over the GIL.
        request = scope["request_id"] = f"{self._boot}{next(self._count):08x}"
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s, status = time.perf_counter(), 0
        cors = CORS if scope["path"].startswith("/v1/") and self._state.identity.mode() == "keys" else {}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in (HEADERS | cors | {"x-request-id": request}).items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            _check_framing(scope)
            if cors and scope["method"] == "OPTIONS":
                self._state.take_rate(self._state.address(scope))
                await Response(None, 204, PREFLIGHT)(scope, receive, send_with_headers)
                return
            scope["app"] = self  # so that routes raise what they cannot answer, instead of answering in plain text
            await self._app(scope, receive, send_with_headers)
        except HTTPException as error:
            refusal = self._not_found(scope, error)
            if isinstance(refusal, TooMany):
                await asyncio.sleep(min(refusal.retry_s, HOLD_S))
            refused = answer(refusal, request)
            refused.headers.update(error.headers or {})  # Allow
            await refused(scope, receive, send_with_headers)
        except SparringError as error:
            if status:  # it failed while its answer was being sent, which now ends without an end
                log.error("request %s: %s", request, error)
            else:
                if isinstance(error, TooMany):
                    await asyncio.sleep(min(error.retry_s, HOLD_S))
                await answer(error, request)(scope, receive, send_with_headers)
        except Exception:
            log.exception("request %s failed", request)
            if not status:
                broken = ServerBusy("something broke here", where="gateway", do=f"Tell the operator: request {request}")
                broken.status, broken.code = 500, "broken"
                await answer(broken, request)(scope, receive, send_with_headers)
        finally:
            self._state.bodies.answered(scope)
            self._log(scope, request, status, time.perf_counter() - begun_s)

    def _not_found(self, scope: Scope, error: HTTPException) -> SparringError:
        """What is wrong with the path or the method; looking for paths is limited as every other request is."""
        try:
            self._state.take_rate(self._state.address(scope))
        except SparringError as too_many:
            return too_many
        if error.status_code != 405:
            return NotFound("there is nothing here", where="path", do="See /openapi.json", field="path")
        wrong = f"it has no {scope['method'][:20]}"
        refusal = NotFound(wrong, where="path", do="See /openapi.json", field="method")
        refusal.status, refusal.code = 405, "method"
        return refusal

    def _log(self, scope: Scope, request: str, status: int, seconds: float) -> None:
        endpoint = scope.get("endpoint_name", "other")
        self._state.metrics.request(endpoint, status, seconds)
        if requests.isEnabledFor(logging.INFO):
            caller: Caller = scope.get("caller", NO_CALLER)
            if not caller.id and self._lines.take("strangers", time.monotonic()) > 0.0:
                self._unlogged += 1
                return
            if self._unlogged:
                requests.info(json.dumps({"not_logged": self._unlogged}))
                self._unlogged = 0
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
            self._state.take_rate(self._state.address(scope))
        else:
            scope["caller"] = self._state.admitted_caller(scope, self._required_scope)
        await self._app(scope, receive, send)


def _check_framing(scope: Scope) -> None:
    """A request with two lengths, or a length and chunks, means one thing to us and another to a proxy."""
    names = [name for name, _ in scope["headers"] if name in (b"content-length", b"transfer-encoding", b"host")]
    if names.count(b"host") > 1:
        raise BadRequest("its host is said twice", where="head", do="Send one Host", field="Host")
    if len(names) != len(set(names)) or (b"content-length" in names and b"transfer-encoding" in names):
        raise BadRequest("its length is said twice", where="head", do="Send one Content-Length", field="Content-Length")
