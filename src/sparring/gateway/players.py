"""Players' tokens, and their right to see and to remove what is kept of them."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import ChunkRefused, Gone
from sparring.gateway.http_errors import json_response
from sparring.gateway.http_limits import read_call
from sparring.gateway.identity import Caller
from sparring.gateway.secrets import MAX_NAME_CHARACTERS
from sparring.gateway.state import GatewayState, caller_of
from sparring.gateway.uploads import BINARY
from sparring.store.protocol import Query
from sparring.wire.chunk import encode, pack
from sparring.wire.ids import GameId, ModelId, PlayerId

MAX_EXPORT_BYTES = 1 << 30


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose token, and for how long; by default as long as the config allows."""

    player: str
    lifetime_s: float | None = None


async def post_token(request: Request, state: GatewayState) -> Response:
    """A token for one player, asked for by the studio's server. The name is not kept."""
    game = state.spec(request.path_params["game"]).id
    asked = await read_call(request, TokenRequest, state.config.gateway.body_deadline_s)
    longest = state.config.gateway.token_lifetime_s
    lifetime_s = longest if asked.lifetime_s is None else asked.lifetime_s
    if not 0.0 < lifetime_s <= longest:
        wrong = "a token does not live so long"
        do = "Ask for less, or raise gateway.token_lifetime_s"
        raise ChunkRefused(wrong, where="token", do=do, field="lifetime_s", value=lifetime_s, limit=longest)
    if not 1 <= len(asked.player) <= MAX_NAME_CHARACTERS:
        wrong = f"a name of {len(asked.player)} characters"
        do = "Send the game's own name for the person"
        raise ChunkRefused(wrong, where="token", do=do, field="player", limit=MAX_NAME_CHARACTERS)
    player = state.identity.secrets.pseudonym(game, asked.player)
    key = caller_of(request).id
    expires_at_ms = state.now_ms() + int(lifetime_s * 1000)
    about = {"game": game, "expires_at_ms": expires_at_ms}  # and not whose: that would have to be erased later
    await asyncio.to_thread(state.audit.write, "token", key, state.now_ms(), **about)
    token = state.identity.token(game, player, expires_at_ms, key)
    return json_response(
        {"token": token, "player": player, "expires_at_ms": expires_at_ms}, headers={"Cache-Control": "no-store"}
    )


async def get_me(request: Request, state: GatewayState) -> Response:
    """What is kept of the caller: a summary in JSON, or with `Accept: application/x-spar-chunks` every chunk."""
    game, player = _self(request, state)
    await _check_there(game, player, state)
    if BINARY in request.headers.get("accept", ""):
        packed = await asyncio.to_thread(_export, game, player, state)
        return Response(packed, 200, {"Cache-Control": "no-store"}, BINARY)
    summary = await asyncio.to_thread(_summary, game, player, state)
    return json_response(summary, headers={"Cache-Control": "no-store"})


async def delete_me(request: Request, state: GatewayState) -> Response:
    """Remove the caller's seats for good; says which models may have seen them."""
    game, player = _self(request, state)
    erased = await asyncio.to_thread(state.store.erase, game, player)
    state.forget(game, player)
    models = await asyncio.to_thread(_saw, game, erased.first_received_ms, state)
    about = {"game": game, "chunks": erased.chunks, "models": models}
    await asyncio.to_thread(state.audit.write, "erase", "player", state.now_ms(), **about)
    return json_response(
        {"chunks": erased.chunks, "steps": erased.steps, "episodes": erased.episodes, "models": models},
        headers={"Cache-Control": "no-store"},
    )


def _self(request: Request, state: GatewayState) -> tuple[GameId, PlayerId]:
    caller: Caller = caller_of(request)
    assert caller.player is not None  # the scope "self" comes with both
    assert caller.game is not None
    return state.spec(caller.game).id, caller.player


async def _check_there(game: GameId, player: PlayerId, state: GatewayState) -> None:
    if await asyncio.to_thread(state.store.erased, game, player):
        raise Gone("this player was erased", where="players", do="Nothing is kept of them", field="player")


def _summary(game: GameId, player: PlayerId, state: GatewayState) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for record in state.store.episodes(Query(game, players=(player,))):
        for seat in record.seats:
            if seat.player == player:
                rows.append(
                    {
                        "episode": record.episode,
                        "version": record.version,
                        "seat": seat.seat,
                        "actor": seat.actor,
                        "steps": seat.steps,
                        "reward": seat.reward,
                        "ending": seat.ending,
                        "outcome": seat.outcome,
                        "received_at_ms": record.received_at_ms,
                    }
                )
    return {"game": game, "player": player, "episodes": rows, "steps": sum(row["steps"] for row in rows)}


def _export(game: GameId, player: PlayerId, state: GatewayState) -> bytes:
    encoded, size = [], 0
    for chunk in state.store.read(Query(game, players=(player,))):
        encoded.append(encode(chunk))
        size += len(encoded[-1])
        if size > MAX_EXPORT_BYTES:
            wrong = "there is more than one answer holds"
            do = "Ask the operator for `spar data export`"
            raise ChunkRefused(wrong, where="export", do=do, field="bytes", limit=MAX_EXPORT_BYTES)
    return pack(encoded)


def _saw(game: GameId, first_received_ms: int | None, state: GatewayState) -> list[ModelId]:
    """Models that read the store after the first of the rows came: any of them may have learned from it."""
    if first_received_ms is None:
        return []
    return [
        listed.card.id
        for listed in state.registry.models(game)
        if listed.card.lineage.store_until_ms is not None and listed.card.lineage.store_until_ms >= first_received_ms
    ]
