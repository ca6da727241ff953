"""The small endpoints: games and their specs, champions, models' files, act, health and metrics."""

import asyncio
import hashlib
import re
import time
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import ChunkRefused, Missing, SparringError
from sparring.gateway.http_errors import BadRequest, json_response
from sparring.gateway.http_limits import read_call
from sparring.gateway.request_arrays import legal_of, observation_of, seat_of, state_of
from sparring.gateway.state import GatewayState
from sparring.nets.chooser import ActRequest
from sparring.wire.ids import ModelId
from sparring.wire.model import ONNX, WEIGHTS

BEGUN_S = time.monotonic()
FILES = {"card.json": "application/json", WEIGHTS: "application/octet-stream", ONNX: "application/octet-stream"}
_ID = re.compile(r"[0-9a-f]{64}")


async def list_games(request: Request, state: GatewayState) -> Response:
    """Every version of every game."""
    rows = [
        {"id": spec.id, "version": spec.version, "hash": spec.hash, "turns": spec.turns, "seats": len(spec.seats)}
        for spec in state.catalogue.games()
    ]
    return json_response({"games": rows, "sample_rate": state.sample_rate()})


async def get_game(request: Request, state: GatewayState) -> Response:
    """A game's spec."""
    spec = state.spec(request.path_params["game"], request.query_params.get("version"))
    return json_response({"spec": spec, "hash": spec.hash, "sample_rate": state.sample_rate()})


async def get_champion(request: Request, state: GatewayState) -> Response:
    """The signed manifest; 304 where the caller has it."""
    spec = state.spec(request.path_params["game"], request.query_params.get("version"))
    seat = _seat(request.query_params.get("seat"), len(spec.seats))
    signed = await asyncio.to_thread(state.registry.champion, spec.id, spec.version, seat)
    if signed is None:
        raise Missing("there is no champion yet", where=f"{spec.id} {spec.version}", do="Train one, then promote it")
    body = msgspec.json.encode(signed)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in (one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")):
        return Response(None, 304, headers)
    return Response(body, 200, headers, "application/json")


async def get_model_file(request: Request, state: GatewayState) -> Response:
    """A file of a model: those exact bytes, which never change under this address. With direct=1 the answer may be
    where to get them instead: the registry's own server."""
    model, name = request.path_params["model"], request.path_params["file"]
    if not _ID.fullmatch(model) or name not in FILES:
        wrong = "there is no such file"
        raise Missing(wrong, where="models", do=f"Ask for {', '.join(FILES)} of a model's 64-digit id")
    tag = f'"{model}/{name}"'
    headers = {"ETag": tag, "Cache-Control": "public, max-age=31536000, immutable"}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers)
    if (
        request.query_params.get("direct") == "1"
    ):  # only on request: other callers may not follow a redirect, or not reach the bucket
        link = await asyncio.to_thread(state.registry.link, ModelId(model), name)
        if link is not None:
            return Response(None, 307, {"Location": link, "Cache-Control": "no-store"})
    content = await asyncio.to_thread(state.registry.file, ModelId(model), name)
    return Response(content, 200, headers, FILES[name])


def _seat(text: str | None, seats: int) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not int(text[:6]) < seats:
        wrong = "there is no such seat"
        raise BadRequest(wrong, where="query", do=f"Send 0 to {seats - 1}", field="seat", value=text[:40])
    return int(text)


class ActCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an act request. `version` is by default the newest, `model` the champion.

    The gateway keeps no state between calls: a recurrent model's `state` comes with each answer, and goes back with the
    next request of the same episode, together with that answer's `model`. It is null where the episode begins.
    """

    observation: dict[str, Any]
    legal: list[Any] | None = None
    seat: int = 0
    strength: float | None = None
    model: ModelId | None = None
    state: list[float] | None = None
    version: str | None = None


async def post_act(request: Request, state: GatewayState) -> Response:
    """One observation, one action. In the answer `model` is null where there is no champion yet and the action is
    random; `state` is null where the model is not recurrent."""
    call = await read_call(request, ActCall, state.config.gateway.body_deadline_s)
    spec = state.spec(request.path_params["game"], call.version)
    seat = seat_of(spec, call.seat)
    if call.strength is not None and not 0.0 <= call.strength <= 1.0:
        wrong = "strength is a share"
        raise ChunkRefused(wrong, where="act", do="Send 0 to 1", field="strength", value=call.strength, limit=[0, 1])
    observation = observation_of(seat, call.observation, spec.frame_stack)
    act_request = ActRequest(observation, legal_of(seat, call.legal), call.strength, state_of(call.state))
    decision = await state.inference.decide(spec, call.seat, act_request, call.model)
    state.metrics.count_act(decision.model)
    return json_response(
        {
            "action": np.asarray(decision.action).tolist(),
            "logp": decision.logp,
            "value": decision.value,
            "model": decision.model,
            "state": None if decision.state_after is None else decision.state_after.tolist(),
        }
    )


async def get_health(request: Request, state: GatewayState) -> Response:
    """The event loop runs."""
    return json_response({"status": "ok", "into": _into(state)})


async def get_readiness(request: Request, state: GatewayState) -> Response:
    """Whether uploads can be kept: an empty append takes the store's write lock; a stream is asked."""
    flow = state.commits.flow()
    try:
        async with asyncio.timeout(5.0):
            if state.stream is None:
                await asyncio.to_thread(state.store.append, [])
            else:
                await asyncio.to_thread(state.stream.ready)
    except (SparringError, TimeoutError):
        return json_response({"status": f"the {_into(state)} does not take writes"}, 503, {"Retry-After": "5"})
    if flow.waiting_chunks >= flow.capacity_chunks:
        return json_response({"status": "the queue is full"}, 503, {"Retry-After": "1"})
    return json_response({"status": "ok", "into": _into(state)})


def _into(state: GatewayState) -> str:
    return "store" if state.stream is None else "stream"


async def get_metrics(request: Request, state: GatewayState) -> Response:
    """Prometheus' text."""
    flow, now_s = state.commits.flow(), time.monotonic()
    text = state.metrics.text(
        {
            "spar_uptime_seconds": now_s - BEGUN_S,
            "spar_queue_chunks": flow.waiting_chunks,
            "spar_queue_capacity_chunks": flow.capacity_chunks,
            "spar_queue_oldest_seconds": flow.oldest_s,
            "spar_commits_total": flow.commits,
            "spar_into_stream": state.stream is not None,
            "spar_sample_rate": state.sampling.rate(now_s),
            "spar_played_steps_per_second": state.sampling.played_steps_per_s(now_s),
        }
    )
    return Response(text, media_type="text/plain; version=0.0.4")
