"""The application: routes from the table of endpoints, the pages, the play socket, and the door around all."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp

from sparring.dashboard.app import routes as page_routes
from sparring.gateway.endpoints import ENDPOINTS, SOCKET, Endpoint
from sparring.gateway.identity import PUBLIC
from sparring.gateway.middleware import CallerCheck, Middleware
from sparring.gateway.play import Play
from sparring.gateway.state import GatewayState


def build(parts: GatewayState) -> ASGIApp:
    """The whole gateway as an ASGI application. Who made the parts closes them."""
    socket = WebSocketRoute(SOCKET.replace("{game}", "{game:path}"), Play(parts))
    routes: list[BaseRoute] = [socket, *(_route(one, parts) for one in ENDPOINTS), *_pages(parts)]
    return Middleware(Router(routes, redirect_slashes=False), parts)


def _route(endpoint: Endpoint, parts: GatewayState) -> Route:
    route = Route(endpoint.pattern, _bound(endpoint, parts), methods=[endpoint.method])
    route.app = CallerCheck(route.app, parts, endpoint.scope, endpoint.answers.__name__)
    return route


def _bound(endpoint: Endpoint, parts: GatewayState) -> Callable[[Request], Awaitable[Response]]:
    answers = endpoint.answers

    async def handle(request: Request) -> Response:
        return await answers(request, parts)

    return handle


def _pages(parts: GatewayState) -> list[Route]:
    """The pages are anybody's, what they show is not."""
    routes = page_routes(parts.config, parts.store, parts.registry, parts.catalogue)
    for route in routes:
        scope = "read" if route.path.startswith("/api/") else PUBLIC
        route.app = CallerCheck(route.app, parts, scope, "pages")
    return routes
