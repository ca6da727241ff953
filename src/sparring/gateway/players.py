"""Players' tokens, and their right to see and to remove what is kept of them."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import ChunkRefused, Gone
from sparring.gateway.http_errors import json_response
from sparring.gateway.identity import Caller
from sparring.gateway.request_body import read_call
from sparring.gateway.secrets import MAX_NAME_CHARACTERS
from sparring.gateway.state import GatewayState, caller_of
from sparring.gateway.uploads import BINARY
from sparring.store.protocol import Query
from sparring.wire.chunk import encode, pack
from sparring.wire.ids import GameId, ModelId, PlayerId

MAX_EXPORT_BYTES = 1 << 30


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose token, and for how long; by default as long as the config allows."""

    player: str
    lifetime_s: float | None = None


async def post_token(request: Request, parts: GatewayState) -> Response:
    """A token for one player, asked for by the studio's server. The name is not kept."""
    game = parts.spec(request.path_params["game"]).id
    wanted = await read_call(request, Wanted, parts.config.gateway.body_deadline_s)
    longest = parts.config.gateway.token_lifetime_s
    lifetime_s = longest if wanted.lifetime_s is None else wanted.lifetime_s
    if not 0.0 < lifetime_s <= longest:
        raise ChunkRefused(
            "a token does not live so long",
            where="token",
            do="Ask for less, or raise gateway.token_lifetime_s",
            field="lifetime_s",
            value=lifetime_s,
            limit=longest,
        )
    if not 1 <= len(wanted.player) <= MAX_NAME_CHARACTERS:
        raise ChunkRefused(
            f"a name of {len(wanted.player)} characters",
            where="token",
            do="Send the game's own name for the person",
            field="player",
            limit=MAX_NAME_CHARACTERS,
        )
    player = parts.identity.secrets.pseudonym(game, wanted.player)
    key = caller_of(request).id
    expires_at_ms = parts.now_ms() + int(lifetime_s * 1000)
    about = {"game": game, "expires_at_ms": expires_at_ms}  # and not whose: that would have to be erased later
    await asyncio.to_thread(parts.audit.write, "token", key, parts.now_ms(), **about)
    token = parts.identity.token(game, player, expires_at_ms, key)
    return json_response(
        {"token": token, "player": player, "expires_at_ms": expires_at_ms}, headers={"Cache-Control": "no-store"}
    )


async def get_me(request: Request, parts: GatewayState) -> Response:
    """What is kept of the caller: a summary in JSON, or with `Accept: application/x-spar-chunks` every chunk."""
    game, player = _self(request, parts)
    await _check_there(game, player, parts)
    if BINARY in request.headers.get("accept", ""):
        packed = await asyncio.to_thread(_export, game, player, parts)
        return Response(packed, 200, {"Cache-Control": "no-store"}, BINARY)
    summary = await asyncio.to_thread(_summary, game, player, parts)
    return json_response(summary, headers={"Cache-Control": "no-store"})


async def delete_me(request: Request, parts: GatewayState) -> Response:
    """Remove the caller's seats for good; says which models may have seen them."""
    game, player = _self(request, parts)
    erased = await asyncio.to_thread(parts.store.erase, game, player)
    parts.forget(game, player)
    models = await asyncio.to_thread(_saw, game, erased.first_received_ms, parts)
    about = {"game": game, "chunks": erased.chunks, "models": models}
    await asyncio.to_thread(parts.audit.write, "erase", "player", parts.now_ms(), **about)
    return json_response(
        {"chunks": erased.chunks, "steps": erased.steps, "episodes": erased.episodes, "models": models},
        headers={"Cache-Control": "no-store"},
    )


def _self(request: Request, parts: GatewayState) -> tuple[GameId, PlayerId]:
    caller: Caller = caller_of(request)
    assert caller.player is not None  # the scope "self" comes with both
    assert caller.game is not None
    return parts.spec(caller.game).id, caller.player


async def _check_there(game: GameId, player: PlayerId, parts: GatewayState) -> None:
    if await asyncio.to_thread(parts.store.erased, game, player):
        raise Gone("this player was erased", where="players", do="Nothing is kept of them", field="player")


def _summary(game: GameId, player: PlayerId, parts: GatewayState) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for record in parts.store.episodes(Query(game, players=(player,))):
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


def _export(game: GameId, player: PlayerId, parts: GatewayState) -> bytes:
    encoded, size = [], 0
    for chunk in parts.store.read(Query(game, players=(player,))):
        encoded.append(encode(chunk))
        size += len(encoded[-1])
        if size > MAX_EXPORT_BYTES:
            raise ChunkRefused(
                "there is more than one answer holds",
                where="export",
                do="Ask the operator for `spar data export`",
                field="bytes",
                limit=MAX_EXPORT_BYTES,
            )
    return pack(encoded)


def _saw(game: GameId, first_received_ms: int | None, parts: GatewayState) -> list[ModelId]:
    """Models that read the store after the first of the rows came: any of them may have learned from it."""
    if first_received_ms is None:
        return []
    return [
        listed.card.id
        for listed in parts.registry.models(game)
        if listed.card.lineage.store_until_ms is not None and listed.card.lineage.store_until_ms >= first_received_ms
    ]
