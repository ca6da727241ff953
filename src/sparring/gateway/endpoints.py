"""Every endpoint once: where it is, who may call it, who answers. Routes, roles, and /openapi.json follow from it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from sparring.gateway.act import post_act
from sparring.gateway.catalogue import get_champion, get_game, get_model_file, list_games
from sparring.gateway.health import get_health, get_metrics, get_readiness
from sparring.gateway.identity import PUBLIC, SELF
from sparring.gateway.openapi import get_openapi
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


SOCKET = "/v1/games/{game}/play"

ENDPOINTS = (
    # First what is called most: routes are tried in this order.
    Endpoint(
        "POST",
        "/v1/games/{game}/chunks",
        "record",
        post_chunks,
        "Upload chunks; an ok means on disk",
        takes=(BINARY, JSON),
        gives={
            400: "Not a chunk, or not JSON",
            404: "No such game",
            408: "The body came too slowly",
            409: "Another content is stored under that key",
            410: "The player was erased",
            413: "Too large",
            422: "A chunk breaks its spec",
            503: "Try again later",
            507: "The disk is full",
        },
    ),
    Endpoint(
        "POST",
        "/v1/games/{game}/act",
        "act",
        post_act,
        "One observation, one action",
        takes=(JSON,),
        gives={400: "Not JSON", 404: "No such game or model", 422: "Not a view of that seat", 503: "Try again later"},
    ),
    Endpoint("GET", "/healthz", PUBLIC, get_health, "The process answers"),
    Endpoint("GET", "/readyz", PUBLIC, get_readiness, "The store takes writes", gives={503: "It does not"}),
    Endpoint("GET", "/openapi.json", PUBLIC, get_openapi, "This description"),
    Endpoint("GET", "/metrics", "read", get_metrics, "Counters, as Prometheus reads them"),
    Endpoint("GET", "/v1/games", "read", list_games, "The games that are served"),
    Endpoint(
        "GET",
        "/v1/games/{game}/champion",
        "read",
        get_champion,
        "The signed manifest of the champion",
        query=("version", "seat"),
        gives={304: "Not changed", 404: "None reigns"},
    ),
    Endpoint(
        "POST",
        "/v1/games/{game}/tokens",
        "admin",
        post_token,
        "A short-lived token for one player",
        takes=(JSON,),
        gives={404: "No such game", 422: "Too long a life"},
    ),
    Endpoint(
        "GET",
        "/v1/games/{game}/players/me",
        SELF,
        get_me,
        "What is kept of the caller",
        gives={410: "They were erased"},
    ),
    Endpoint("DELETE", "/v1/games/{game}/players/me", SELF, delete_me, "Remove all that is kept of the caller"),
    Endpoint(
        "GET",
        "/v1/models/{model}/{file}",
        "read",
        get_model_file,
        "A model's file; it never changes",
        query=("direct",),
        gives={307: "With direct=1: get it there", 304: "Not changed", 404: "No such model or file"},
    ),
    # Last, since {game} would swallow the others' ends.
    Endpoint(
        "GET",
        "/v1/games/{game}",
        "read",
        get_game,
        "A game's spec",
        query=("version",),
        gives={404: "No such game or version"},
    ),
)
