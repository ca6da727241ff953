"""`POST …/chunks`: unpack, decode, replace the player's name, check, commit; then say what became of each."""

import asyncio
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import ChunkRefused, Conflict, Gone, NotYours, Refused, SparringError
from sparring.games.chunk_checks import check_chunk
from sparring.gateway.http_errors import BadRequest, TooLarge, TooMany, answer, described, json_response
from sparring.gateway.identity import Caller
from sparring.gateway.json_columns import columns
from sparring.gateway.request_body import read_body, read_json, shaped
from sparring.gateway.secrets import MAX_NAME_CHARACTERS
from sparring.gateway.state import GatewayState, caller_of, request_id
from sparring.store.protocol import AppendResult
from sparring.wire.chunk import MAX_ENCODED_BYTES, MAX_HEADER_BYTES, Chunk, Header, decode, encode, unpack
from sparring.wire.ids import PlayerId, misdated

BINARY, JSON = "application/x-spar-chunks", "application/json"
MAX_CHUNKS = 256  # in one upload
ON_LOOP_BYTES = 64 << 10  # a larger upload is decoded on a thread, so that others do not wait for it

_REFUSALS: dict[str, type[Refused]] = {"conflict": Conflict, "forbidden": NotYours, "gone": Gone}

Judged = Chunk | SparringError


class JsonChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk as people write it by hand."""

    header: Header
    columns: dict[str, Any]


class JsonUpload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON form of an upload."""

    chunks: list[JsonChunk]


async def post_chunks(request: Request, parts: GatewayState) -> Response:
    """Every chunk is judged alone; the status is that of the first refusal, and the others are kept all the same."""
    caller, game = caller_of(request), request.path_params["game"]
    parts.spec(game)  # Missing before a body is read
    limits = parts.config.gateway
    body = await read_body(request, limits.max_upload_bytes, limits.body_deadline_s)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if len(body) > ON_LOOP_BYTES:
        judged = await asyncio.to_thread(judge_all, body, kind, game, caller, parts)
    else:
        judged = judge_all(body, kind, game, caller, parts)
    results, first = await keep(judged, parts)
    if first is not None:
        return answer(first, request_id(request), results, parts.now_ms())
    return json_response({"results": results, "sample_rate": parts.sample_rate(), "time_ms": parts.now_ms()})


def judge_all(body: bytes, kind: str, game: str, caller: Caller, parts: GatewayState) -> list[Judged]:
    """Each chunk of an upload as it may be stored, or what is wrong with it. Raises for the upload as a whole."""
    received: list[Any]
    if kind == BINARY:
        received = list(unpack(body))
    elif kind == JSON:
        received = shaped(read_json(body), JsonUpload).chunks
    else:
        raise BadRequest(
            f"content type {kind[:80]!r}", where="upload", do=f"Send {BINARY} or {JSON}", field="Content-Type"
        )
    if not 1 <= len(received) <= MAX_CHUNKS:
        wrong = f"{len(received)} chunks, an upload has 1 to {MAX_CHUNKS}"
        refusal = TooLarge if received else BadRequest
        raise refusal(wrong, where="upload", do="Send fewer at once", field="chunks", limit=MAX_CHUNKS)
    return [_judge(one, game, caller, parts) for one in received]


def _judge(received: memoryview | JsonChunk, game: str, caller: Caller, parts: GatewayState) -> Judged:
    try:
        chunk = _from_json(received, game, parts) if isinstance(received, JsonChunk) else decode(received)
        return prepared(chunk, game, caller, parts)
    except SparringError as error:
        return error


def prepared(chunk: Chunk, game: str, caller: Caller, parts: GatewayState) -> Chunk:
    """The chunk with what the gateway sets, once it passes every check that it can be put to alone."""
    head = chunk.header
    spec = parts.catalogue.spec(game, head.version)
    if spec is None:
        known = [one.version for one in parts.catalogue.games() if one.id == game]
        raise ChunkRefused(
            f"version {head.version[:40]!r} is not served here",
            where="chunk, version",
            do="Send a version that is, or add its spec to `games` in spar.toml",
            field="version",
            value=head.version[:40],
            limit=known,
        )
    header = msgspec.structs.replace(
        head,
        player=_player(head, game, caller, parts),
        uploader=caller.uploader,
        received_at_ms=parts.now_ms(),
    )
    ready = Chunk(header, chunk.columns, chunk.body)
    check_chunk(ready, spec)
    _well_dated(ready, parts)
    return _within_size(ready)


def _well_dated(chunk: Chunk, parts: GatewayState) -> None:
    """An episode's time decides where it is kept and for how long: one that cannot be is refused."""
    episode, keep_days = chunk.header.episode, parts.config.store.keep_days
    if wrong := misdated(episode, chunk.header.received_at_ms, int(keep_days * 86_400_000)):
        raise ChunkRefused(
            wrong,
            where="chunk, episode",
            do="Set the clock by `time_ms` of the answer, and open a new episode",
            field="episode",
            value=episode,
            limit=f"a day ahead, or {keep_days:g} days old" if keep_days else "a day ahead",
        )


def _within_size(chunk: Chunk) -> Chunk:
    """The chunk, if it can be read back: one that came as JSON is not encoded yet, and the header has grown."""
    if chunk.body and len(chunk.body) <= MAX_ENCODED_BYTES - MAX_HEADER_BYTES:
        return chunk
    encoded = encode(chunk)
    if len(encoded) > MAX_ENCODED_BYTES:
        raise ChunkRefused(
            f"it takes {len(encoded)} bytes",
            where="chunk",
            do="Send shorter chunks",
            field="steps",
            value=chunk.header.steps,
            limit=f"{MAX_ENCODED_BYTES} bytes",
        )
    return chunk if chunk.body else decode(encoded)


def _player(head: Header, game: str, caller: Caller, parts: GatewayState) -> PlayerId | None:
    """The pseudonym that is stored. A player's token speaks for that player alone."""
    name = head.player
    if name is not None and not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise ChunkRefused(
            f"a name of {len(name)} characters",
            where="chunk, player",
            do="Leave it out, or send the game's own name for the person",
            field="player",
            limit=MAX_NAME_CHARACTERS,
        )
    if caller.player is None:
        return None if name is None else parts.identity.secrets.pseudonym(game, name)
    if name is None:  # a bot's seat that this player's game recorded is nobody's; a person's is theirs
        return caller.player if head.actor == "person" else None
    if parts.identity.secrets.pseudonym(game, name) != caller.player:
        raise NotYours("the token is another player's", where="chunk, player", do="Leave it out", field="player")
    return caller.player


def _from_json(one: JsonChunk, game: str, parts: GatewayState) -> Chunk:
    head = one.header
    if head.columns or head.codec != "zstd":
        raise BadRequest(
            "columns and codec have no place in a JSON header", where="header", do="Leave them out", field="header"
        )
    spec = parts.catalogue.spec(game, head.version)
    if spec is None or not 0 <= head.seat < len(spec.seats):
        return Chunk(head, {})  # `prepared` says what is wrong with it
    return Chunk(head, columns(one.columns, spec.seats[head.seat]))


async def keep(judged: list[Judged], parts: GatewayState) -> tuple[list[dict[str, Any]], SparringError | None]:
    """Commit what passed; a result for each, in order, and the first refusal."""
    now_s = parts.clock()
    for at, one in enumerate(judged):
        if isinstance(one, Chunk) and one.header.player is not None:
            wait_s = parts.quotas.take((one.header.game, one.header.player), one.header.steps, now_s)
            if wait_s:
                limit = parts.quotas.steps_per_day
                judged[at] = TooMany(
                    "the player's steps for today are used up", where="quota", limit=limit, retry_s=wait_s
                )
    passed = [one for one in judged if isinstance(one, Chunk)]
    try:
        verdicts = iter(await parts.commits.submit(passed) if passed else ())
    except SparringError:
        for chunk in passed:
            _give_back(chunk, parts)
        raise
    results, first = [], None
    for one in judged:
        kept = next(verdicts) if isinstance(one, Chunk) else None
        error = _noted(one, kept, parts) if isinstance(one, Chunk) and kept is not None else one
        if isinstance(error, SparringError):
            first = first or error
            results.append(_refused(error, kept))
        else:
            results.append({"verdict": kept.verdict if kept else ""})
        parts.metrics.count("spar_chunks_total", f'verdict="{results[-1]["verdict"]}"')
    return results, first


def _noted(chunk: Chunk, kept: AppendResult, parts: GatewayState) -> SparringError | None:
    """Count what was kept; the refusal that the store's verdict amounts to, if it is one."""
    head = chunk.header
    if kept.verdict in ("new", "taken"):  # whether a stream had it before is for the sink to find
        parts.sampling.kept(head.steps, head.sample_rate, time.monotonic())
        parts.metrics.count("spar_steps_total", by=head.steps)
        return None
    _give_back(chunk, parts)
    if kept.verdict == "had":
        return None
    value = "" if kept.verdict == "gone" else kept.value  # of somebody who was forgotten nothing is repeated
    return _REFUSALS[kept.verdict](
        kept.reason, where="store", do="Do not send it again", field=kept.field, value=value, limit=kept.limit
    )


def _give_back(chunk: Chunk, parts: GatewayState) -> None:
    if chunk.header.player is not None:
        parts.quotas.give_back((chunk.header.game, chunk.header.player), chunk.header.steps)


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
