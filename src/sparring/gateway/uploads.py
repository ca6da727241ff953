"""`POST …/chunks`: unpack, decode, replace the player's name, check, commit; then say what became of each."""

import asyncio
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import ChunkRefused, Conflict, Gone, NotYours, Refused, SparringError
from sparring.gateway.http_errors import BadRequest, TooLarge, TooMany, answer, described, json_response
from sparring.gateway.http_limits import read_body, read_json, shaped
from sparring.gateway.identity import Caller
from sparring.gateway.request_arrays import columns
from sparring.gateway.secrets import MAX_NAME_CHARACTERS
from sparring.gateway.state import GatewayState, caller_of, request_id
from sparring.store.protocol import AppendResult
from sparring.wire.chunk import Chunk, Header, decode, unpack
from sparring.wire.ids import PlayerId

BINARY, JSON = "application/x-spar-chunks", "application/json"
MAX_CHUNKS = 256  # in one upload
ON_LOOP_BYTES = 64 << 10  # a larger upload is decoded on a thread, so that others do not wait for it

_REFUSALS: dict[str, type[Refused]] = {"conflict": Conflict, "forbidden": NotYours, "gone": Gone}

Checked = Chunk | SparringError


class JsonChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk as people write it by hand."""

    header: Header
    columns: dict[str, Any]


class JsonUpload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON form of an upload."""

    chunks: list[JsonChunk]


async def post_chunks(request: Request, state: GatewayState) -> Response:
    """Every chunk is checked on its own; the status is that of the first refusal, and the others are still kept."""
    caller, game = caller_of(request), request.path_params["game"]
    state.spec(game)  # Missing before a body is read
    limits = state.config.gateway
    body = await read_body(request, limits.max_upload_bytes, limits.body_deadline_s)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if len(body) > ON_LOOP_BYTES:
        checked = await asyncio.to_thread(check_all, body, kind, game, caller, state)
    else:
        checked = check_all(body, kind, game, caller, state)
    results, first = await commit(checked, state)
    if first is not None:
        return answer(first, request_id(request), results, state.now_ms())
    return json_response({"results": results, "sample_rate": state.sample_rate(), "time_ms": state.now_ms()})


def check_all(body: bytes, kind: str, game: str, caller: Caller, state: GatewayState) -> list[Checked]:
    """Each chunk of an upload as it may be stored, or what is wrong with it. Raises for the upload as a whole."""
    received: list[Any]
    if kind == BINARY:
        received = list(unpack(body))
    elif kind == JSON:
        received = shaped(read_json(body), JsonUpload).chunks
    else:
        wrong = f"content type {kind[:80]!r}"
        raise BadRequest(wrong, where="upload", do=f"Send {BINARY} or {JSON}", field="Content-Type")
    if not 1 <= len(received) <= MAX_CHUNKS:
        wrong = f"{len(received)} chunks, an upload has 1 to {MAX_CHUNKS}"
        refusal = TooLarge if received else BadRequest
        raise refusal(wrong, where="upload", do="Send fewer at once", field="chunks", limit=MAX_CHUNKS)
    return [_checked(one, game, caller, state) for one in received]


def _checked(received: memoryview | JsonChunk, game: str, caller: Caller, state: GatewayState) -> Checked:
    try:
        chunk = _from_json(received, game, state) if isinstance(received, JsonChunk) else decode(received)
        return accepted(chunk, game, caller, state)
    except SparringError as error:
        return error


def accepted(chunk: Chunk, game: str, caller: Caller, state: GatewayState) -> Chunk:
    """The chunk as it is stored, with what the gateway sets; ChunkRefused or NotYours otherwise."""
    head = chunk.header
    if head.game != game:
        wrong = f"it is of another game ({head.game[:80]!r}, the limit is {game!r})"
        do = "Send it to its own game"
        raise ChunkRefused(wrong, where="chunk, game", do=do, field="game", value=head.game[:80], limit=game)
    state.rules.spec(head)
    player = _player(head, game, caller, state)
    return state.rules.accepted(chunk, player=player, uploader=caller.id, received_at_ms=state.now_ms())


def _player(head: Header, game: str, caller: Caller, state: GatewayState) -> PlayerId | None:
    """The pseudonym that is stored. A player's token speaks for that player alone."""
    name = head.player
    if name is not None and not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        wrong = f"a name of {len(name)} characters"
        do = "Leave it out, or send the game's own name for the person"
        raise ChunkRefused(wrong, where="chunk, player", do=do, field="player", limit=MAX_NAME_CHARACTERS)
    if caller.player is None:
        return None if name is None else state.identity.secrets.pseudonym(game, name)
    if name is None:  # a bot's seat belongs to no player; a person's seat is this player's
        return caller.player if head.actor == "person" else None
    if state.identity.secrets.pseudonym(game, name) != caller.player:
        raise NotYours("the token is another player's", where="chunk, player", do="Leave it out", field="player")
    return caller.player


def _from_json(one: JsonChunk, game: str, state: GatewayState) -> Chunk:
    head = one.header
    if head.columns or head.codec != "zstd":
        wrong = "columns and codec have no place in a JSON header"
        raise BadRequest(wrong, where="header", do="Leave them out", field="header")
    spec = state.catalogue.spec(game, head.version)
    if spec is None or not 0 <= head.seat < len(spec.seats):
        return Chunk(head, {})  # `accepted` says what is wrong with it
    return Chunk(head, columns(one.columns, spec.seats[head.seat]))


async def commit(checked: list[Checked], state: GatewayState) -> tuple[list[dict[str, Any]], SparringError | None]:
    """Commit what passed; a result for each, in order, and the first refusal."""
    now_s = state.clock()
    for at, one in enumerate(checked):
        if isinstance(one, Chunk) and one.header.player is not None:
            wait_s = state.quotas.take((one.header.game, one.header.player), one.header.steps, now_s)
            if wait_s:
                limit = state.quotas.steps_per_day
                checked[at] = TooMany(
                    "the player's steps for today are used up", where="quota", limit=limit, retry_s=wait_s
                )
    passed = [one for one in checked if isinstance(one, Chunk)]
    try:
        verdicts = iter(await state.commits.submit(passed) if passed else ())
    except SparringError:
        for chunk in passed:
            _give_back(chunk, state)
        raise
    results, first = [], None
    for one in checked:
        kept = next(verdicts) if isinstance(one, Chunk) else None
        error = _verdict_error(one, kept, state) if isinstance(one, Chunk) and kept is not None else one
        if isinstance(error, SparringError):
            first = first or error
            results.append(_refused(error, kept))
        else:
            results.append({"verdict": kept.verdict if kept else ""})
        state.metrics.count("spar_chunks_total", f'verdict="{results[-1]["verdict"]}"')
    return results, first


def _verdict_error(chunk: Chunk, kept: AppendResult, state: GatewayState) -> SparringError | None:
    """Count what was kept; the refusal that the store's verdict amounts to, if it is one."""
    head = chunk.header
    if kept.verdict in ("new", "taken"):  # whether a stream had it before is for the sink to find
        state.sampling.kept(head.steps, head.sample_rate, time.monotonic())
        state.metrics.count("spar_steps_total", by=head.steps)
        return None
    _give_back(chunk, state)
    if kept.verdict == "had":
        return None
    value = "" if kept.verdict == "gone" else kept.value  # nothing of an erased player is repeated
    return _REFUSALS[kept.verdict](
        kept.reason, where="store", do="Do not send it again", field=kept.field, value=value, limit=kept.limit
    )


def _give_back(chunk: Chunk, state: GatewayState) -> None:
    if chunk.header.player is not None:
        state.quotas.give_back((chunk.header.game, chunk.header.player), chunk.header.steps)


def _refused(error: SparringError, kept: AppendResult | None) -> dict[str, Any]:
    _, said = described(error)
    refused = "quota" if isinstance(error, TooMany) else "refused"
    verdict = refused if kept is None else kept.verdict
    return {
        "verdict": verdict,
        "reason": said["message"],
        "field": said["field"],
        "value": said["value"],
        "limit": said["limit"],
    }
