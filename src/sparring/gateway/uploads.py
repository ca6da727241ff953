"""`POST …/chunks`: read and check each chunk's header, reserve the memory that its body takes, inflate, check, commit;
then say what became of each."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparring.errors import ChunkRefused, Conflict, Gone, NotYours, Refused, SparringError
from sparring.games.chunk_checks import GROUP_BYTES, grouped
from sparring.gateway.http_errors import BadRequest, Result, TooLarge, TooMany, Verdict, answer, described
from sparring.gateway.identity import Caller
from sparring.gateway.rate_limits import Quotas
from sparring.gateway.request_body import JsonArray, columns, read_body, read_json
from sparring.gateway.state import GatewayState
from sparring.store.protocol import AppendResult
from sparring.wire.chunk import Chunk, Column, Encoded, Header, encoded_bytes, inflate, layout, read_header, unpack
from sparring.wire.ids import PlayerId

BINARY, JSON = "application/x-spar-chunks", "application/json"
MAX_CHUNKS = 256  # in one upload
STORED = ("new", "taken")  # verdicts; whether a stream had a chunk before is for the sink to find
ON_LOOP_BYTES, ON_LOOP_INFLATED_BYTES = 64 << 10, 256 << 10  # more is done on a thread: others must not wait for it
JSON_EXPANDS = 32  # bytes of memory for each byte of JSON, at most: a small object in few letters

_REFUSALS: dict[str, type[Refused]] = {"conflict": Conflict, "forbidden": NotYours, "gone": Gone}

T = TypeVar("T")
Received = Encoded | Chunk | SparringError  # a binary chunk, one that came as JSON, or what is wrong with it
Checked = Chunk | SparringError


class JsonChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk as people write it by hand."""

    header: Header
    columns: dict[str, JsonArray]


class JsonUpload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON form of an upload."""

    chunks: list[JsonChunk]


class Uploaded(msgspec.Struct, frozen=True):
    """A result for each chunk, in order; the share of new episodes to record; the gateway's clock."""

    results: list[Result]
    sample_rate: float
    time_ms: int


async def post_chunks(request: Request, state: GatewayState) -> Uploaded | Response:
    """Every chunk is checked on its own; the status is that of the first refusal, and the others are still kept."""
    caller, game = request.scope["caller"], request.path_params["game"]
    state.spec(game)  # Missing before a body is read
    limits = state.config.gateway
    body = await read_body(request, limits.max_upload_bytes, limits.body_deadline_s, state.bodies)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # What becomes of JSON is not known before it is read. A recurrent state may have to ask the registry for its model.
    on_loop = kind != JSON and len(body) <= ON_LOOP_BYTES and b"state/" not in body
    async with state.decoding.reserved(caller.id, JSON_EXPANDS * len(body) if kind == JSON else 0):
        received = await _run(on_loop, read_chunks, body, kind, game, caller, state)
        results, first = await _keep(received, caller, state)
    if first is not None:
        return answer(first, request.scope["request_id"], results, state.now_ms())
    return Uploaded(results, state.sample_rate(), state.now_ms())


def read_chunks(body: bytes, kind: str, game: str, caller: Caller, state: GatewayState) -> list[Received]:
    """Each chunk of an upload with the header that is stored, or what is wrong with it. Of a binary one nothing is
    inflated yet; one that came as JSON is whole. Raises for the upload as a whole."""
    received: list[Any]
    if kind == BINARY:
        received = unpack(body, 4 * MAX_CHUNKS)  # or four million that are empty
    elif kind == JSON:
        received = read_json(body, JsonUpload).chunks
    else:
        wrong = f"content type {kind[:80]!r}"
        raise BadRequest(wrong, where="upload", do=f"Send {BINARY} or {JSON}", field="Content-Type")
    if not 1 <= len(received) <= MAX_CHUNKS:
        wrong = f"{len(received)} chunks, an upload has 1 to {MAX_CHUNKS}"
        refusal = TooLarge if received else BadRequest
        raise refusal(wrong, where="upload", do="Send fewer at once", field="chunks", limit=MAX_CHUNKS)
    return [_read_chunk(one, game, caller, state) for one in received]


def _read_chunk(received: memoryview | JsonChunk, game: str, caller: Caller, state: GatewayState) -> Received:
    try:
        if isinstance(received, JsonChunk):
            chunk = _from_json(received, game, state)
            header = _accepted_header(chunk.header, layout(chunk), game, caller, state)
            return state.rules.accepted_values(replace(chunk, header=header))
        encoded = read_header(received)
        head = encoded.header
        return replace(encoded, header=_accepted_header(head, head.columns, game, caller, state))
    except SparringError as error:
        return error


def _accepted_header(head: Header, columns: Sequence[Column], game: str, caller: Caller, state: GatewayState) -> Header:
    player = checked_player(head, game, caller, state)
    return state.rules.accepted_header(
        head,
        columns,
        player=player,
        uploader=caller.id,
        received_at_ms=state.now_ms(),
        state_bytes=state.states.limit(head.actor, columns),
    )


async def _keep(
    received: list[Received], caller: Caller, state: GatewayState
) -> tuple[list[Result], SparringError | None]:
    """Inflate, check and commit group by group: each has its memory reserved first, and frees it before the next."""
    results: list[Result] = []
    first: SparringError | None = None
    for group in grouped(received, _inflated_bytes, min(GROUP_BYTES, state.decoding.caller_bytes)):
        size = sum(map(_inflated_bytes, group))
        on_loop = size <= ON_LOOP_INFLATED_BYTES
        async with state.decoding.reserved(caller.id, size):
            some, refusal = await commit(await _run(on_loop, _inflated, group, state), caller, state)
        results += some
        first = first or refusal
    return results, first


def _inflated_bytes(one: Received) -> int:
    return one.inflated_bytes + len(one.body) if isinstance(one, Encoded) else 0


def _inflated(group: list[Received], state: GatewayState) -> list[Checked]:
    return [_checked(one, state) if isinstance(one, Encoded) else one for one in group]


def _checked(one: Encoded, state: GatewayState) -> Checked:
    try:
        return state.rules.accepted_values(inflate(one))
    except SparringError as error:
        return error


async def _run(on_loop: bool, work: Callable[..., T], *args: Any) -> T:
    return work(*args) if on_loop else await asyncio.to_thread(work, *args)


def accepted(chunk: Chunk, game: str, caller: Caller, state: GatewayState) -> Chunk:
    """A chunk that the gateway recorded itself, as it is stored; ChunkRefused or NotYours otherwise."""
    player = checked_player(chunk.header, game, caller, state)
    return state.rules.accepted(chunk, player=player, uploader=caller.id, received_at_ms=state.now_ms())


def checked_player(head: Header, game: str, caller: Caller, state: GatewayState) -> PlayerId | None:
    """The pseudonym that is stored, of a chunk of that game. A player's token speaks for that player alone."""
    if head.game != game:
        wrong = f"it is of another game ({head.game[:80]!r}, the limit is {game!r})"
        do = "Send it to its own game"
        raise ChunkRefused(wrong, where="chunk, game", do=do, field="game", value=head.game[:80], limit=game)
    state.rules.spec(head)
    if head.player is None:  # of a token, a bot's seat belongs to no player and a person's seat is this player's
        return caller.player if head.actor == "person" else None
    named = state.identity.secrets.pseudonym(game, head.player)
    if caller.player not in (None, named):
        raise NotYours("the token is another player's", where="chunk, player", do="Leave it out", field="player")
    return named


def _from_json(one: JsonChunk, game: str, state: GatewayState) -> Chunk:
    head = one.header
    if head.columns or head.codec != "zstd":
        wrong = "columns and codec have no place in a JSON header"
        raise BadRequest(wrong, where="header", do="Leave them out", field="header")
    spec = state.catalogue.spec(game, head.version)
    if spec is None or not 0 <= head.seat < len(spec.seats):
        return Chunk(head, {})  # `accepted` says what is wrong with it
    return Chunk(head, columns(one.columns, spec.seats[head.seat]))


async def commit(
    checked: list[Checked], caller: Caller, state: GatewayState
) -> tuple[list[Result], SparringError | None]:
    """Commit what passed; a result for each, in order, and the first refusal."""
    now_s = time.time()
    for at, one in enumerate(checked):
        if isinstance(one, Chunk) and (over := _take_quota(one, caller, state, now_s)) is not None:
            checked[at] = over
    passed = [one for one in checked if isinstance(one, Chunk)]
    try:
        verdicts = iter(await state.commits.submit(passed) if passed else ())
    except SparringError:
        for chunk in passed:
            _give_back(chunk, caller, state)
        raise
    results: list[Result] = []
    first: SparringError | None = None
    new_steps = 0
    for one in checked:
        if isinstance(one, Chunk):
            kept = next(verdicts)
            error = _verdict_error(one, kept, caller, state)
            new_steps += one.header.steps if kept.verdict in STORED else 0
            results.append(Result(kept.verdict) if error is None else _refused(error, kept.verdict))
        else:
            error = one
            results.append(_refused(one, "quota" if isinstance(one, TooMany) else "refused"))
        first = first or error
    state.metrics.count_chunks(Counter(result.verdict for result in results), new_steps)
    return results, first


def _verdict_error(chunk: Chunk, kept: AppendResult, caller: Caller, state: GatewayState) -> SparringError | None:
    """Count what was kept; the refusal that the store's verdict amounts to, if it is one."""
    head = chunk.header
    if kept.verdict in STORED:
        state.sampling.kept(head.steps, head.sample_rate, time.monotonic())
        return None
    _give_back(chunk, caller, state)
    if kept.verdict == "had":
        return None
    value = "" if kept.verdict == "gone" else kept.value  # nothing of an erased player is repeated
    return _REFUSALS[kept.verdict](
        kept.reason, where="store", do="Do not send it again", field=kept.field, value=value, limit=kept.limit
    )


def _accounts(chunk: Chunk, caller: Caller, state: GatewayState) -> list[tuple[Quotas, Hashable]]:
    """Whose quotas a chunk counts against: its sender's, whatever it says, and that of the player whom a key names."""
    game, player = chunk.header.game, chunk.header.player
    if caller.player is not None:
        return [(state.player_quotas, (game, caller.player))]
    named: list[tuple[Quotas, Hashable]] = [] if player is None else [(state.player_quotas, (game, player))]
    return [*named, (state.key_quotas, caller.id)]


def _take_quota(chunk: Chunk, caller: Caller, state: GatewayState, now_s: float) -> TooMany | None:
    steps, size = chunk.header.steps, encoded_bytes(chunk)
    taken: list[tuple[Quotas, Hashable]] = []
    for quotas, account in _accounts(chunk, caller, state):
        if wait_s := quotas.take(account, steps, size, now_s):
            for others, other in taken:
                others.give_back(other, steps, size)
            whose = "player" if quotas is state.player_quotas else "key"
            limit = f"{quotas.steps_per_day} steps, {quotas.bytes_per_day} bytes"
            wrong = f"the {whose}'s steps or bytes for today are used up"
            return TooMany(wrong, where="quota", limit=limit, retry_s=wait_s)
        taken.append((quotas, account))
    return None


def _give_back(chunk: Chunk, caller: Caller, state: GatewayState) -> None:
    for quotas, account in _accounts(chunk, caller, state):
        quotas.give_back(account, chunk.header.steps, encoded_bytes(chunk))


def _refused(error: SparringError, verdict: Verdict) -> Result:
    _, said = described(error)
    return Result(verdict, said.message, said.field, said.value, said.limit)
