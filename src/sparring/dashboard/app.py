"""Routes of the pages: HTML and modules as they lie in `web/`, and the API that they poll.

Everything comes from this server: no other host, no build step, nothing inline, so that the strictest
content security policy holds. The gateway decides who may read.
"""

import hashlib
import mimetypes
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparring.config import Config
from sparring.dashboard.overview import PLAYABLE, Fresh, Overview
from sparring.dashboard.runs import Runs
from sparring.errors import Missing, Refused
from sparring.games.catalogue import Catalogue
from sparring.registry.registry import Registry
from sparring.store.protocol import LedgerStore

FRESH_S = 1.0  # pages poll every second or two; many of them cost as much as one
MINUTES_FRESH_S = 5.0  # an hour of them is some thousand rows
WEB = Path(str(resources.files("sparring.dashboard"))) / "web"
KINDS = {".js": "text/javascript; charset=utf-8", ".html": "text/html; charset=utf-8"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # kept, and asked about each time: the ETag makes that cheap
}
_encode = msgspec.json.Encoder().encode


def routes(config: Config, store: LedgerStore, registry: Registry, catalogue: Catalogue) -> list[Route]:
    """The pages and their API. Handlers are plain functions: starlette runs them on threads."""
    runs = Runs(Path(config.data) / "runs")
    overview = Overview(store, registry, catalogue, runs)
    games = Fresh(overview.games, FRESH_S, time.monotonic)
    promotions = Fresh(overview.promotions, FRESH_S, time.monotonic)
    run_list = Fresh(runs.list, FRESH_S, time.monotonic)
    minutes = Fresh(lambda: overview.minutes(int(time.time() * 1000)), MINUTES_FRESH_S, time.monotonic)

    def games_answer(request: Request) -> object:
        rows = games()
        return {"games": rows, "running": sum(row.running for row in rows), "trust": registry.trust}

    answers: dict[str, Callable[[Request], object]] = {
        "/api/games": games_answer,
        "/api/models": lambda request: {"models": overview.models(request.query_params.get("game", ""))},
        "/api/promotions": lambda request: {"promotions": promotions()},
        "/api/runs": lambda request: {"runs": run_list()},
        "/api/runs/{run}/metrics": lambda request: runs.metrics(request.path_params["run"], _whole(request, "after")),
        "/api/stats": lambda request: overview.stats(request.query_params.get("game", "")),
        "/api/minutes": lambda request: {"games": minutes(), "now_ms": int(time.time() * 1000)},
    }
    pages = {"/": "index.html", "/models": "models.html", "/learning": "learning.html"}
    return [
        *(Route(path, _page(name)) for path, name in pages.items()),
        Route("/play/{game}", _play),
        Route("/web/{path:path}", _static),
        *(Route(path, _json(answer)) for path, answer in answers.items()),
    ]


def _page(name: str) -> Any:
    def page(request: Request) -> Response:
        return _file(WEB / name, request)

    return page


def _play(request: Request) -> Response:
    if request.path_params["game"] not in PLAYABLE:
        return _file(WEB / "missing.html", request, status=404)
    return _file(WEB / "play.html", request)


def _static(request: Request) -> Response:
    path = (WEB / request.path_params["path"]).resolve()
    if not path.is_relative_to(WEB.resolve()) or not path.is_file():
        raise Missing("there is no such file", where=request.url.path[:200], do="Go back to /")
    return _file(path, request)


def _file(path: Path, request: Request, status: int = 200) -> Response:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag}
    if status == 200 and tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    kind = KINDS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Response(content, status, headers, kind)


def _json(answer: Callable[[Request], object]) -> Any:
    def handler(request: Request) -> Response:
        headers = {"Cache-Control": "no-store"}
        return Response(_encode(answer(request)), headers=headers, media_type="application/json")

    return handler


def _whole(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not text.isdecimal() or len(text) > 15:
        raise Refused(
            f"{name} = {text[:40]!r} is no whole number", where=request.url.path, do="Count from 0", field=name
        )
    return int(text)
