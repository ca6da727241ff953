"""The application: a table of every endpoint (its path, who may call it, what answers), the routes and /openapi.json
made from that table, the dashboard's pages, and the play socket; all behind the middleware."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp

from sparring import __version__
from sparring.dashboard.app import routes as page_routes
from sparring.gateway import handlers
from sparring.gateway.http_errors import json_response
from sparring.gateway.identity import PUBLIC, SELF
from sparring.gateway.middleware import CallerCheck, Middleware
from sparring.gateway.play import Play
from sparring.gateway.players import delete_me, get_me, post_token
from sparring.gateway.state import GatewayState
from sparring.gateway.uploads import BINARY, JSON, post_chunks

Handler = Callable[[Request, GatewayState], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method at one path. `{game}` may hold slashes, since games of other libraries do."""

    method: str
    path: str
    scope: str
    answers: Handler
    summary: str
    takes: tuple[str, ...] = ()  # content types of the body
    query: tuple[str, ...] = ()
    gives: dict[int, str] = field(default_factory=dict)  # beside 200, and the 401, 403 and 429 of them all

    @property
    def pattern(self) -> str:
        return self.path.replace("{game}", "{game:path}")


async def get_openapi(request: Request, state: GatewayState) -> Response:
    """The description of everything under this address."""
    return json_response(describe())


_UPLOAD_ERRORS = {
    **{400: "Not a chunk, or not JSON", 404: "No such game", 408: "The body came too slowly", 413: "Too large"},
    **{409: "Another content is stored under that key", 410: "The player was erased", 422: "A chunk breaks its spec"},
    **{503: "Try again later", 507: "The disk is full"},
}
_ACT_ERRORS = {400: "Not JSON", 404: "No such game or model", 422: "Not a view of that seat", 503: "Try again later"}
_FILE_ANSWERS = {307: "With direct=1: get it there", 304: "Not changed", 404: "No such model or file"}
_CHAMPION_ANSWERS = {304: "Not changed", 404: "There is none yet"}
_TOKEN_ERRORS = {404: "No such game", 422: "Too long a life"}

_GAME = "/v1/games/{game}"
SOCKET = f"{_GAME}/play"
ENDPOINTS = (
    # The most frequent calls first: routes are tried in this order.
    Endpoint("POST", f"{_GAME}/chunks", "record", post_chunks, "Upload chunks; an ok means on disk", (BINARY, JSON), (),
             _UPLOAD_ERRORS),
    Endpoint("POST", f"{_GAME}/act", "act", handlers.post_act, "One observation, one action", (JSON,), (), _ACT_ERRORS),
    Endpoint("GET", "/healthz", PUBLIC, handlers.get_health, "The process answers"),
    Endpoint("GET", "/readyz", PUBLIC, handlers.get_readiness, "The store takes writes", gives={503: "It does not"}),
    Endpoint("GET", "/openapi.json", PUBLIC, get_openapi, "This description"),
    Endpoint("GET", "/metrics", "read", handlers.get_metrics, "Counters, as Prometheus reads them"),
    Endpoint("GET", "/v1/games", "read", handlers.list_games, "The games that are served"),
    Endpoint("GET", f"{_GAME}/champion", "read", handlers.get_champion, "The signed manifest of the champion", (),
             ("version", "seat"), _CHAMPION_ANSWERS),
    Endpoint("POST", f"{_GAME}/tokens", "admin", post_token, "A short-lived token for one player", (JSON,), (),
             _TOKEN_ERRORS),
    Endpoint("GET", f"{_GAME}/players/me", SELF, get_me, "What is kept of the caller", gives={410: "They were erased"}),
    Endpoint("DELETE", f"{_GAME}/players/me", SELF, delete_me, "Remove all that is kept of the caller"),
    Endpoint("GET", "/v1/models/{model}/{file}", "read", handlers.get_model_file, "A model's file; it never changes",
             query=("direct",), gives=_FILE_ANSWERS),
    # Last: {game} would match the paths of the others.
    Endpoint("GET", _GAME, "read", handlers.get_game, "A game's spec", (), ("version",),
             {404: "No such game or version"}),
)  # fmt: skip


def build(state: GatewayState) -> ASGIApp:
    """The whole gateway as an ASGI application. The caller closes what `state` holds."""
    socket = WebSocketRoute(SOCKET.replace("{game}", "{game:path}"), Play(state))
    routes: list[BaseRoute] = [socket, *(_route(one, state) for one in ENDPOINTS), *_pages(state)]
    return Middleware(Router(routes, redirect_slashes=False), state)


def _route(endpoint: Endpoint, state: GatewayState) -> Route:
    route = Route(endpoint.pattern, _bound(endpoint, state), methods=[endpoint.method])
    route.app = CallerCheck(route.app, state, endpoint.scope, endpoint.answers.__name__)
    return route


def _bound(endpoint: Endpoint, state: GatewayState) -> Callable[[Request], Awaitable[Response]]:
    answers = endpoint.answers

    async def handle(request: Request) -> Response:
        return await answers(request, state)

    return handle


def _pages(state: GatewayState) -> list[Route]:
    """The pages are public; the data that they show needs the scope `read`."""
    routes = page_routes(state.config, state.store, state.registry, state.catalogue)
    for route in routes:
        scope = "read" if route.path.startswith("/api/") else PUBLIC
        route.app = CallerCheck(route.app, state, scope, "pages")
    return routes


_TEXT = {"type": "string"}
_PROBLEM = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": _TEXT, "message": _TEXT, "field": _TEXT, "value": {}, "limit": {}, "do": _TEXT},
            "required": ["code", "message", "field", "value", "limit", "do"],
        },
        "request": _TEXT,
        "results": {"type": "array", "items": {"$ref": "#/components/schemas/Result"}},
    },
    "required": ["error", "request"],
}
_RESULT = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["new", "had", "taken", "refused", "conflict", "forbidden", "gone", "quota"]},
        **{"reason": _TEXT, "field": _TEXT, "value": {}, "limit": {}},
    },
    "required": ["verdict"],
}


def describe() -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        responses = {"200": {"description": "OK"}} | {str(code): _problem(text) for code, text in one.gives.items()}
        if one.scope != "public":
            shared = {401: "No valid key", 403: f"Needs the scope {one.scope}", 429: "Too many; see Retry-After"}
            responses |= {str(code): _problem(text) for code, text in shared.items() if str(code) not in responses}
        operation: dict[str, Any] = {
            "summary": one.summary,
            "operationId": one.answers.__name__,
            "parameters": _parameters(one.path, one.query),
            "responses": responses,
            "security": [] if one.scope == "public" else [{"bearer": [one.scope]}],
        }
        if one.takes:
            operation["requestBody"] = {"required": True, "content": {kind: {} for kind in one.takes}}
        paths.setdefault(one.path, {})[one.method.lower()] = operation
    paths[SOCKET] = {
        "get": {
            "summary": "WebSocket: hello, start, observe → action, end; see docs/wire.md",
            "operationId": "play",
            "parameters": _parameters(SOCKET, ()),
            "responses": {"101": {"description": "Switching protocols"}},
            "security": [{"bearer": ["act"]}],
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sparring",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM, "Result": _RESULT},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _parameters(path: str, query: tuple[str, ...]) -> list[dict[str, Any]]:
    text = {"type": "string"}
    named = [{"name": name, "in": "path", "required": True, "schema": text} for name in re.findall(r"{(\w+)}", path)]
    return named + [{"name": name, "in": "query", "required": False, "schema": text} for name in query]


def _problem(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
