"""What is served: games with their specs, champions, and models' files."""

import asyncio
import hashlib
import re

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import Missing
from sparring.gateway.http_errors import BadRequest, json_response
from sparring.gateway.state import GatewayState
from sparring.wire.ids import ModelId
from sparring.wire.model import ONNX, WEIGHTS

FILES = {"card.json": "application/json", WEIGHTS: "application/octet-stream", ONNX: "application/octet-stream"}
_ID = re.compile(r"[0-9a-f]{64}")


async def list_games(request: Request, parts: GatewayState) -> Response:
    """Every version of every game."""
    rows = [
        {"id": spec.id, "version": spec.version, "hash": spec.hash, "turns": spec.turns, "seats": len(spec.seats)}
        for spec in parts.catalogue.games()
    ]
    return json_response({"games": rows, "sample_rate": parts.sample_rate()})


async def get_game(request: Request, parts: GatewayState) -> Response:
    """A game's spec."""
    spec = parts.spec(request.path_params["game"], request.query_params.get("version"))
    return json_response({"spec": spec, "hash": spec.hash, "sample_rate": parts.sample_rate()})


async def get_champion(request: Request, parts: GatewayState) -> Response:
    """The signed manifest; 304 where the caller has it."""
    spec = parts.spec(request.path_params["game"], request.query_params.get("version"))
    seat = _seat(request.query_params.get("seat"), len(spec.seats))
    signed = await asyncio.to_thread(parts.registry.champion, spec.id, spec.version, seat)
    if signed is None:
        raise Missing("no champion reigns yet", where=f"{spec.id} {spec.version}", do="Train one, then promote it")
    body = msgspec.json.encode(signed)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in (one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")):
        return Response(None, 304, headers)
    return Response(body, 200, headers, "application/json")


async def get_model_file(request: Request, parts: GatewayState) -> Response:
    """A file of a model: those exact bytes, which never change under this address. With direct=1 the answer may be
    where to get them instead: the registry's own server."""
    model, name = request.path_params["model"], request.path_params["file"]
    if not _ID.fullmatch(model) or name not in FILES:
        raise Missing(
            "there is no such file", where="models", do=f"Ask for {', '.join(FILES)} of a model's 64-digit id"
        )
    tag = f'"{model}/{name}"'
    headers = {"ETag": tag, "Cache-Control": "public, max-age=31536000, immutable"}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers)
    if request.query_params.get("direct") == "1":  # only who asks for it: others may not follow, or not reach it
        link = await asyncio.to_thread(parts.registry.link, ModelId(model), name)
        if link is not None:
            return Response(None, 307, {"Location": link, "Cache-Control": "no-store"})
    content = await asyncio.to_thread(parts.registry.file, ModelId(model), name)
    return Response(content, 200, headers, FILES[name])


def _seat(text: str | None, seats: int) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not int(text[:6]) < seats:
        raise BadRequest(
            "there is no such seat", where="query", do=f"Send 0 to {seats - 1}", field="seat", value=text[:40]
        )
    return int(text)
