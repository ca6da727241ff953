"""Every endpoint but uploads: games and their specs, champions, models' files, act, players' tokens and what is kept
of them, health and metrics. A handler returns its answer as a typed struct, or a whole Response; `app.py` encodes the
former, and /openapi.json describes it from the annotation."""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from sparring.errors import ChunkRefused, Gone, Missing, NotYours, SparringError
from sparring.games.spec import GameSpec
from sparring.gateway.http_errors import BadRequest, ServerBusy
from sparring.gateway.identity import Caller, check_game
from sparring.gateway.request_body import (
    CALL_BYTES,
    JsonArray,
    act_bytes,
    array,
    legal_of,
    observation_of,
    read_body,
    read_call,
    read_json,
    seat_of,
)
from sparring.gateway.state import FileContent, GatewayState
from sparring.gateway.uploads import BINARY
from sparring.nets.chooser import ActRequest
from sparring.nodes.board import Board, Orders
from sparring.store.protocol import Query
from sparring.wire.champion import Signed
from sparring.wire.chunk import encode, pack
from sparring.wire.ids import EpisodeId, GameId, ModelId, PlayerId
from sparring.wire.model import ONNX, WEIGHTS

log = logging.getLogger(__name__)

MAX_EXPORTS, EXPORT_BYTES, SEND_WITHIN_S = 8, 64 << 10, 20.0  # at once; in one part; for which a caller has this long
SLICE_BYTES = 1 << 16
READY_S = 0.5  # /readyz asks the store once in this time, however many ask
NO_STORE = {"Cache-Control": "no-store"}
FILES = {"card.json": "application/json", WEIGHTS: "application/octet-stream", ONNX: "application/octet-stream"}
JSON_LINES = "application/x-ndjson"
PLAYER = "spar-player"  # the header in which a caller without a token shows a player's secret name
_ID = re.compile(r"[0-9a-f]{64}")
_EXPONENT = re.compile(rb" ([0-9.]+e\+[0-9]+)$", re.MULTILINE)
_SECRET_NAME = re.compile(r"[0-9a-f]{32}")  # as a page draws it at random


class GameEntry(msgspec.Struct, frozen=True):
    """One version of a game; `hash` is of its spec."""

    id: GameId
    version: str
    hash: str
    turns: str
    seats: int


class GameList(msgspec.Struct, frozen=True):
    """Every version of every game, and the share of new episodes to record."""

    games: list[GameEntry]
    sample_rate: float


async def list_games(request: Request, state: GatewayState) -> GameList:
    """Every version of every game."""
    rows = [GameEntry(one.id, one.version, one.hash, one.turns, len(one.seats)) for one in state.catalogue.games()]
    return GameList(rows, state.sample_rate())


class GameAnswer(msgspec.Struct, frozen=True):
    """A game's spec and its hash, and the share of new episodes to record."""

    spec: GameSpec
    hash: str
    sample_rate: float


class VersionQuery(msgspec.Struct, frozen=True):
    """The game's version, by default the newest."""

    version: str | None = None


async def get_game(request: Request, state: GatewayState) -> GameAnswer:
    """A game's spec."""
    spec = state.spec(request.path_params["game"], request.scope["query"].version)
    return GameAnswer(spec, spec.hash, state.sample_rate())


class ChampionQuery(msgspec.Struct, frozen=True):
    """The game's version, by default the newest; the seat, by default any."""

    version: str | None = None
    seat: Annotated[int, msgspec.Meta(ge=0)] | None = None


async def get_champion(request: Request, state: GatewayState) -> Signed | Response:
    """The signed manifest; 304 where the caller has it."""
    query: ChampionQuery = request.scope["query"]
    spec, seat = state.spec(request.path_params["game"], query.version), query.seat
    if seat is not None and seat >= len(spec.seats):
        wrong, do = "there is no such seat", f"Send 0 to {len(spec.seats) - 1}"
        raise BadRequest(wrong, where="query", do=do, field="seat", value=seat)
    signed = await asyncio.to_thread(state.registry.champion, spec.id, spec.version, seat)
    if signed is None and seat is None and len(spec.kinds) > 1:
        wrong, do = "each kind of seats has a champion of its own", f"Send seat=0 to {len(spec.seats) - 1}"
        raise Missing(wrong, where=f"{spec.id} {spec.version}", do=do)
    if signed is None:
        raise Missing("there is no champion yet", where=f"{spec.id} {spec.version}", do="Train one, then promote it")
    body = msgspec.json.encode(signed)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in (one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")):
        return Response(None, 304, headers)
    return Response(body, 200, headers, "application/json")


async def get_strengths(request: Request, state: GatewayState) -> Signed:
    """The signed ladder of strengths that the game sells."""
    spec = state.spec(request.path_params["game"], request.scope["query"].version)
    signed = await asyncio.to_thread(state.registry.strengths, spec.id, spec.version)
    if signed is None:
        do = "Play a league: `spar league GAME`; without a ladder a strength is a share of random moves"
        raise Missing("no ladder of strengths was made yet", where=f"{spec.id} {spec.version}", do=do)
    return signed


class FileQuery(msgspec.Struct, frozen=True):
    """direct=1: the answer may be a redirect to the registry's own server."""

    direct: str = ""


async def get_model_file(request: Request, state: GatewayState) -> Response:
    """A file of a model: those exact bytes, which never change under this address. With direct=1 the answer may be
    where to get them instead: the registry's own server."""
    model, name = request.path_params["model"], request.path_params["file"]
    if not _ID.fullmatch(model) or name not in FILES:
        wrong = "there is no such file"
        raise Missing(wrong, where="models", do=f"Ask for {', '.join(FILES)} of a model's 64-digit id")
    caller: Caller = request.scope["caller"]
    if caller.game is not None:
        check_game(caller, (await asyncio.to_thread(state.registry.card, ModelId(model))).game)
    tag = f'"{model}/{name}"'
    headers = {"ETag": tag, "Cache-Control": "private, max-age=31536000, immutable"}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers)
    # Only on request: other callers may not follow a redirect, or not reach the bucket.
    if request.scope["query"].direct == "1":
        link = await asyncio.to_thread(state.registry.link, ModelId(model), name)
        if link is not None:
            return Response(None, 307, {"Location": link, **NO_STORE})
    return SharedFile(await _shared_file(state, ModelId(model), name), headers, FILES[name])


async def _shared_file(state: GatewayState, model: ModelId, name: str) -> FileContent:
    """The file, in memory once however many callers it is being sent to; ServerBusy where too many others are."""
    if (found := state.files.get((model, name))) is not None:
        return found
    if (reading := state.reading.get((model, name))) is None:
        reading = state.reading[model, name] = asyncio.create_task(_read_file(state, model, name))
        reading.add_done_callback(lambda _: state.reading.pop((model, name), None))
    return await asyncio.shield(reading)


async def _read_file(state: GatewayState, model: ModelId, name: str) -> FileContent:
    read = FileContent(await asyncio.to_thread(state.registry.file, model, name))
    most = state.config.gateway.bodies_bytes
    if len(read.content) + sum(len(one.content) for one in state.files.values()) > most:
        wrong = f"the models that are being sent are above {most} bytes"
        raise ServerBusy(wrong, where="models", do="Try again later", limit=most)
    state.files[model, name] = read
    return read


class SharedFile(Response):
    """Sends a file in slices, as fast as its caller reads it: a caller that does not read costs a slice."""

    def __init__(self, file: FileContent, headers: dict[str, str], media_type: str) -> None:
        super().__init__(None, 200, headers | {"Content-Length": str(len(file.content))}, media_type)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, len(self._file.content), SLICE_BYTES):
            part = self._file.content[at : at + SLICE_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})


class ActCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an act request. `version` is by default the newest, `model` the champion.

    The gateway keeps no state between calls: a recurrent model's `state` comes with each answer, and goes back with the
    next request of the same episode, together with that answer's `model`. It is null where the episode begins.
    `strength` and `style` choose from the ladder that the game sells, unless a `model` is named.
    `search_ms` lets the model look ahead for so long, at most gateway.max_search_ms, in games whose observation shows
    the whole state.
    """

    observation: dict[str, JsonArray]
    legal: list[Any] | None = None
    seat: int = 0
    strength: float | None = None
    style: str | None = None
    model: ModelId | None = None
    state: list[float] | None = None
    version: str | None = None
    search_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


class ActAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is null where there is no champion yet and the action is random; `logp` is null where it is not known,
    `state` where the model is not recurrent."""

    action: Any  # as the game's spec describes it: a number, or a list of them
    logp: float | None
    value: float | None
    model: ModelId | None
    state: list[float] | None


async def post_act(request: Request, state: GatewayState) -> ActAnswer:
    """One observation, one action."""
    game, limits = request.path_params["game"], state.config.gateway
    body = await read_body(request, act_bytes(state.spec(game)), limits.body_deadline_s, state.bodies)
    if len(body) <= CALL_BYTES:
        spec, call, act_request = _read_act(body, game, state)
    else:  # others must not wait for it
        spec, call, act_request = await asyncio.to_thread(_read_act, body, game, state)
    state.take_search(request.scope["caller"], call.search_ms)
    decision = await state.inference.decide(spec, call.seat, act_request, call.model)
    state.metrics.count_act(decision.model)
    return ActAnswer(
        action=np.asarray(decision.action).tolist(),
        logp=decision.logp,
        value=decision.value,
        model=decision.model,
        state=None if decision.state_after is None else decision.state_after.tolist(),
    )


def _read_act(body: bytes, game: str, state: GatewayState) -> tuple[GameSpec, ActCall, ActRequest]:
    call = read_json(body, ActCall)
    spec = state.spec(game, call.version)
    seat = seat_of(spec, call.seat)
    if call.strength is not None and not 0.0 <= call.strength <= 1.0:
        wrong = "strength is a share"
        raise ChunkRefused(wrong, where="act", do="Send 0 to 1", field="strength", value=call.strength, limit=[0, 1])
    observation = observation_of(seat, call.observation, spec.frame_stack)
    memory = None if call.state is None else array("state", call.state, "float32")
    legal, vary = legal_of(seat, call.legal), spec.has_rivals
    return (
        spec,
        call,
        ActRequest(observation, legal, call.strength, memory, call.search_ms, vary=vary, style=call.style),
    )


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose token, and for how long; by default as long as the config allows."""

    player: str
    lifetime_s: float | None = None


class Token(msgspec.Struct, frozen=True):
    """The token, the player's pseudonym, and when the token expires."""

    token: str
    player: PlayerId
    expires_at_ms: int


async def post_token(request: Request, state: GatewayState) -> Token:
    """A token for one player, asked for by the studio's server. The name is not kept."""
    game = state.spec(request.path_params["game"]).id
    asked = await read_call(request, TokenRequest, state.config.gateway.body_deadline_s, state.bodies)
    longest = state.config.gateway.token_lifetime_s
    lifetime_s = longest if asked.lifetime_s is None else asked.lifetime_s
    if not 0.0 < lifetime_s <= longest:
        wrong = "a token does not live so long"
        do = "Ask for less, or raise gateway.token_lifetime_s"
        raise ChunkRefused(wrong, where="token", do=do, field="lifetime_s", value=lifetime_s, limit=longest)
    player = state.identity.secrets.pseudonym(game, asked.player)
    key = request.scope["caller"].id
    expires_at_ms = state.now_ms() + int(lifetime_s * 1000)
    about = {"game": game, "expires_at_ms": expires_at_ms}  # and not whose: that would have to be erased later
    await asyncio.to_thread(state.audit.write, "token", key, state.now_ms(), **about)
    return Token(state.identity.token(game, player, expires_at_ms, key), player, expires_at_ms)


class NodeOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Drain, ban or allow a node by its name, or as key:ID every node with that API key. `why` is told to the node."""

    node: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    action: Literal["drain", "ban", "allow"]
    why: Annotated[str, msgspec.Meta(max_length=500)] = ""


async def post_node_order(request: Request, state: GatewayState) -> Orders:
    """What holds from now on; parents obey within seconds."""
    asked = await read_call(request, NodeOrder, state.config.gateway.body_deadline_s, state.bodies)
    board = Board(state.config.data)
    await asyncio.to_thread(board.order, asked.action, asked.node, asked.why)
    by = request.scope["caller"].id
    await asyncio.to_thread(state.audit.write, f"{asked.action} node", by, state.now_ms(), node=asked.node)
    return board.orders()


class PlayerSeat(msgspec.Struct, frozen=True, kw_only=True):
    """What the player's seat did in one episode."""

    episode: EpisodeId
    version: str
    received_at_ms: int
    seat: int
    actor: str
    steps: int
    reward: float
    ending: str
    outcome: float | None


class PlayerRecord(msgspec.Struct, frozen=True):
    """What is kept of a player."""

    game: GameId
    player: PlayerId
    episodes: list[PlayerSeat]
    steps: int


async def get_me(request: Request, state: GatewayState) -> PlayerRecord | Response:
    """What is kept of the caller: a summary in JSON; or every chunk, with `Accept: application/x-spar-chunks`, or as
    JSON, one in a line, with `Accept: application/x-ndjson`."""
    game, player = _self(request, state)
    if await asyncio.to_thread(state.store.erased, game, player):
        raise Gone("this player was erased", where="players", do="Nothing is kept of them", field="player")
    accept = request.headers.get("accept", "")
    if JSON_LINES in accept:
        return Export(_lines(game, player, state), state.exports, JSON_LINES)
    if BINARY in accept:
        return Export(_packed_chunks(game, player, state), state.exports, BINARY)
    return Export(_record(game, player, state), state.exports, "application/json")


class Erasure(msgspec.Struct, frozen=True):
    """What was removed, and the models whose training may have read it."""

    chunks: int
    steps: int
    episodes: int
    models: list[ModelId]


async def delete_me(request: Request, state: GatewayState) -> Erasure:
    """Remove the caller's episodes for good, every seat of them; says which models may have seen them."""
    game, player = _self(request, state)
    erased = await asyncio.to_thread(state.store.erase, game, player, state.catalogue.views(game))
    if state.stream_intake is not None:
        state.stream_intake.erased(game, player)
    first_ms = erased.first_received_ms
    models = [] if first_ms is None else await asyncio.to_thread(state.registry.saw, game, first_ms)
    about = {"game": game, "chunks": erased.chunks, "models": models}
    await asyncio.to_thread(state.audit.write, "erase", "player", state.now_ms(), **about)
    return Erasure(erased.chunks, erased.steps, erased.episodes, models)


def _self(request: Request, state: GatewayState) -> tuple[GameId, PlayerId]:
    """The player that the caller is: their token's, or the one whose secret name the caller shows."""
    caller, game = request.scope["caller"], state.spec(request.path_params["game"]).id
    state.take_own(caller)
    if caller.player is not None:
        return game, caller.player
    name = request.headers.get(PLAYER, "")
    if not _SECRET_NAME.fullmatch(name):  # any other name could be guessed
        wrong, do = "this needs a player", "Send their token, or the secret name under which they play"
        raise NotYours(wrong, where="identity", do=do, field=PLAYER)
    return game, state.identity.secrets.pseudonym(game, name)


class Export(StreamingResponse):
    """A long answer that is read from the store while it is sent, one at a time for each caller. A caller that takes
    none of it for SEND_WITHIN_S is left."""

    def __init__(self, parts: Iterator[bytes], exports: set[str], media_type: str) -> None:
        """`exports`: the callers that have one under way."""
        super().__init__(_joined(parts), 200, NO_STORE, media_type)
        self._exports = exports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_WITHIN_S):
                await send(message)

        caller = scope["caller"].id
        if caller in self._exports or len(self._exports) >= MAX_EXPORTS:
            raise ServerBusy("another export is being sent", where="players", do="Ask again when it is done")
        self._exports.add(caller)
        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            log.warning("an export was not taken within %.0f s, and is left", SEND_WITHIN_S)
        finally:
            self._exports.discard(caller)


def _joined(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in parts of EXPORT_BYTES or a little more: each costs a thread and a system call."""
    held, size = list[bytes](), 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= EXPORT_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _record(game: GameId, player: PlayerId, state: GatewayState) -> Iterator[bytes]:
    """A PlayerRecord as JSON, an episode at a time."""
    yield msgspec.json.encode({"game": game, "player": player})[:-1] + b',"episodes":['
    steps, comma = 0, b""
    for record in state.store.episodes(Query(game, players=(player,))):
        for seat in record.seats:
            if seat.player == player:
                row = PlayerSeat(
                    episode=record.episode,
                    version=record.version,
                    received_at_ms=record.received_at_ms,
                    seat=seat.seat,
                    actor=seat.actor,
                    steps=seat.steps,
                    reward=seat.reward,
                    ending=seat.ending,
                    outcome=seat.outcome,
                )
                yield comma + msgspec.json.encode(row)
                comma, steps = b",", steps + seat.steps
    yield b'],"steps":%d}' % steps


def _packed_chunks(game: GameId, player: PlayerId, state: GatewayState) -> Iterator[bytes]:
    return (pack([encode(chunk)]) for chunk in state.store.read(Query(game, players=(player,))))


def _lines(game: GameId, player: PlayerId, state: GatewayState) -> Iterator[bytes]:
    for chunk in state.store.read(Query(game, players=(player,))):
        header = msgspec.structs.replace(chunk.header, columns=(), codec="zstd")  # as in a JSON upload
        columns = {name: array.tolist() for name, array in chunk.columns.items()}
        yield msgspec.json.encode({"header": header, "columns": columns}) + b"\n"


class Health(msgspec.Struct, frozen=True):
    """Where uploads go."""

    status: Literal["ok"]
    into: Literal["store", "stream"]


async def get_health(request: Request, state: GatewayState) -> Health:
    """The event loop runs."""
    return Health("ok", "store" if state.stream is None else "stream")


async def get_readiness(request: Request, state: GatewayState) -> Health:
    """Whether uploads can be kept: an empty append takes the store's write lock; a stream is asked."""
    flow, health = state.commits.flow(), await get_health(request, state)
    if state.ready is None or (state.ready[1].done() and time.monotonic() - state.ready[0] > READY_S):
        state.ready = time.monotonic(), asyncio.create_task(_ask_store(state))
    try:
        await asyncio.shield(state.ready[1])
    except (SparringError, TimeoutError):
        refusal = ServerBusy(f"the {health.into} does not take writes", where="gateway", do="Try again later")
        refusal.retry_s = 5.0
        raise refusal from None
    if flow.waiting_chunks >= flow.capacity_chunks:
        raise ServerBusy("the queue is full", where="gateway", do="Try again later", limit=flow.capacity_chunks)
    return health


async def _ask_store(state: GatewayState) -> None:
    async with asyncio.timeout(5.0):
        if state.stream is None:
            await asyncio.to_thread(state.store.append, [])
        else:
            await asyncio.to_thread(state.stream.ready)


async def get_metrics(request: Request, state: GatewayState) -> Response:
    """In the format that the caller accepts: Prometheus' text, or OpenMetrics."""
    encode_metrics, content_type = choose_encoder(request.headers.get("accept", ""))
    # prometheus_client writes a count of a million as 1e+06.
    text = _EXPONENT.sub(lambda found: b" %d" % float(found[1]), encode_metrics(state.metrics.registry))
    return Response(text, headers={"Content-Type": content_type})
