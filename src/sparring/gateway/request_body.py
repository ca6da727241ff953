"""A request's body: read within limits of size and time, then JSON that every parser reads alike, then arrays.

Chunks in JSON become columns; the observation, mask and state of an act request become arrays that the game's spec
allows. What does not fit is refused, never wrapped around.
"""

import asyncio
import json
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from sparring.errors import ChunkRefused
from sparring.games.spec import GameSpec, Leaf, SeatSpec
from sparring.gateway.http_errors import BadRequest, ServerBusy, TooLarge, TooLate
from sparring.wire.chunk import MAX_DIMENSIONS, Array

Shape = TypeVar("Shape")
JsonArray = list[Any] | float | int  # nested lists of numbers, or one number
Numbers: Any = bool | int | float  # the same, for msgspec, with as many axes as a column has at most
for _ in range(MAX_DIMENSIONS):
    Numbers = bool | int | float | list[Numbers]

MAX_CALL_BYTES = 1 << 20  # of a JSON call other than an upload
CALL_BYTES, NUMBER_BYTES = 64 << 10, 32  # of one, and for each number that its game's spec lets it have beside that
STATE_NUMBERS = 4_096  # of a recurrent state, which the spec does not know
RESERVE_WITHIN_S = 5.0  # a caller waits so long for memory, then it is sent away


class ByteBudget:
    """How many bytes all requests under way may hold together, and one caller at most half of them: what one caller
    holds keeps no other waiting. Used on the event loop alone."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.caller_bytes = limit_bytes, limit_bytes // 2
        self._used_bytes, self._used = 0, Counter[str]()  # of all, and by caller
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    def take(self, caller: str, size: int) -> bool:
        """Whether so many more were left for that caller; they are now taken."""
        if self._used_bytes + size > self.limit_bytes or self._used[caller] + size > self.caller_bytes:
            return False
        self._used_bytes += size
        self._used[caller] += size
        return True

    def give_back(self, caller: str, size: int) -> None:
        """So many are free again, and go to those who wait for them, in their order."""
        self._used_bytes -= size
        self._used[caller] -= size
        if self._used[caller] <= 0:
            del self._used[caller]
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if one[2].done():
                continue
            if self.take(*one[:2]):
                one[2].set_result(None)
            else:
                self._waiting.append(one)

    @asynccontextmanager
    async def reserved(self, caller: str, size: int) -> AsyncIterator[None]:
        """The caller has so many bytes while the block lasts. ServerBusy where they did not become free in time,
        TooLarge where they never will."""
        if size > self.caller_bytes:
            wrong = f"it takes {size} bytes of memory, the limit is {self.caller_bytes} for one caller"
            raise TooLarge(wrong, where="upload", do="Send less at once, or raise gateway.decode_bytes", value=size)
        if not self.take(caller, size):
            await self._wait(caller, size)
        try:
            yield
        finally:
            self.give_back(caller, size)

    async def _wait(self, caller: str, size: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((caller, size, granted))
        try:
            await asyncio.wait({granted}, timeout=RESERVE_WITHIN_S)
        except asyncio.CancelledError:
            if not granted.cancel():
                self.give_back(caller, size)
            raise
        if not granted.done():
            granted.cancel()
            wrong = f"what is being decoded takes all of {self.limit_bytes} bytes"
            raise ServerBusy(wrong, where="upload", do="Send it again later", limit=self.limit_bytes)


class BodyBudget(ByteBudget):
    """How many bytes the bodies of all requests under way may have together."""

    def take_part(self, scope: Scope, size: int) -> None:
        """So many more for that request; ServerBusy where they are not left."""
        if not self.take(_caller(scope), size):
            wrong = f"the bodies of all requests together are above {self.limit_bytes} bytes"
            raise ServerBusy(wrong, where="body", do="Try again later", limit=self.limit_bytes)
        scope["body_bytes"] = scope.get("body_bytes", 0) + size

    def answered(self, scope: Scope) -> None:
        """The request was answered; what its body took is free."""
        if size := scope.pop("body_bytes", 0):
            self.give_back(_caller(scope), size)


def _caller(scope: Scope) -> str:
    return str(scope["caller"].id)  # a body is read only of callers that were admitted


async def read_body(request: Request, limit_bytes: int, deadline_s: float, budget: BodyBudget) -> bytes:
    """The whole body; TooLarge before it is read where it says its length, TooLate after the deadline."""
    claimed = request.headers.get("content-length")
    if claimed is not None and (not claimed.isascii() or not claimed.isdigit() or int(claimed[:20]) > limit_bytes):
        raise _too_large(claimed[:20], limit_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(deadline_s):
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise _too_large(f"{size} or more", limit_bytes)
                budget.take_part(request.scope, len(part))
                parts.append(part)
    except ClientDisconnect:
        raise BadRequest("the caller went away", where="body", do="Send it again") from None
    except TimeoutError:
        wrong = f"{size} bytes came in {deadline_s:.0f} s"
        raise TooLate(wrong, where="body", do="Send it faster", limit=deadline_s) from None
    return b"".join(parts)


def read_json(body: bytes, shape: type[Shape]) -> Shape:
    """JSON that every parser reads alike (no key twice, no NaN or Infinity, UTF-8 alone, no endless nesting) as that
    type; or a BadRequest that names the path to what does not fit."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_word)
        return _converted(value, shape, "body")
    except (ValueError, RecursionError) as error:
        wrong = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not JSON: {error}"
        raise BadRequest(wrong[:300], where="body", do="Send one JSON object in UTF-8", field="body") from None


def read_query(request: Request, shape: type[Shape]) -> Shape:
    """The query's parameters as that type; BadRequest otherwise. Others are ignored."""
    return _converted(dict(request.query_params), shape, "query")


async def read_call(request: Request, shape: type[Shape], deadline_s: float, budget: BodyBudget) -> Shape:
    """The JSON body of a short call as that type."""
    return read_json(await read_body(request, CALL_BYTES, deadline_s, budget), shape)


def act_bytes(spec: GameSpec) -> int:
    """What the text of an observation of this game may have, with a mask and a state: numbers that it has no use for
    would be read all the same, while others wait."""
    leaves = [leaf.stacked(spec.frame_stack) for seat in spec.seats for leaf in seat.observation]
    numbers = sum(math.prod(shape) for shape in leaves) + max(seat.action.masks for seat in spec.seats)
    return min(MAX_CALL_BYTES, CALL_BYTES + NUMBER_BYTES * (numbers + STATE_NUMBERS))


def _converted(value: Any, shape: type[Shape], where: str) -> Shape:
    try:
        return msgspec.convert(value, shape, strict=where != "query")  # a query's numbers are text
    except msgspec.ValidationError as error:
        field = str(error).rpartition("`$")[2].strip("`.") if "`$" in str(error) else ""
        raise BadRequest(str(error)[:300], where=where, do="See /openapi.json", field=field) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _no_word(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _too_large(found: str, limit_bytes: int) -> TooLarge:
    wrong = f"{found} bytes, the limit is {limit_bytes}"
    do = "Send fewer chunks at once"
    return TooLarge(wrong, where="body", do=do, field="Content-Length", value=found, limit=limit_bytes)


def columns(lists: Mapping[str, Any], seat: SeatSpec) -> dict[str, Array]:
    """Every list as an array of its column's dtype. A name that the spec does not know becomes float64;
    `games/chunk_checks.py` refuses it by name."""
    dtypes = {"reward": "float32", "tick": "int64", "legal": "uint8", "behaviour_logp": "float32"}
    dtypes |= {leaf.name: leaf.dtype for leaf in (*seat.observation, seat.action)}
    dtypes |= {f"final_{leaf.name}": leaf.dtype for leaf in seat.observation}
    dtypes |= {name: "float32" for name in lists if name.startswith("state/")}
    return {name: array(name, value, dtypes.get(name, "float64")) for name, value in lists.items()}


def array(name: str, value: Any, dtype: str) -> Array:
    """One column. Whole numbers stay within their dtype and floats within theirs, or the column is refused."""
    try:
        # First that these are numbers: NumPy would make each text as long as the longest one.
        found = np.asarray(msgspec.convert(value, Numbers))
    except msgspec.ValidationError as error:
        raise _bad_column(name, str(error)[:100], "numbers", "it holds what is no number") from None
    except (ValueError, OverflowError) as error:
        raise _bad_column(name, str(error)[:100], "an array", "its rows differ in length or kind") from None
    if found.dtype.kind not in "biuf":
        value = str(found.flat[0])[:60] if found.size else ""
        raise _bad_column(name, value, "numbers", "it holds what is no number, or one beyond 64 bits")
    target = np.dtype(dtype)
    if not found.size:
        return found.astype(target)
    low, high = found.min().item(), found.max().item()
    limits: Any = np.iinfo(target) if target.kind in "iu" else np.finfo(target)
    if target.kind in "iu" and found.dtype.kind == "f":
        if not (np.isfinite(found).all() and (found == np.floor(found)).all()):
            raise _bad_column(name, str(low), dtype, "it holds numbers that are not whole")
        low, high = int(low), int(high)
    if low < limits.min or high > limits.max:  # NaN passes here, and is refused by the checks of every chunk
        value = low if low < limits.min else high
        raise _bad_column(name, value, [limits.min.__str__(), limits.max.__str__()], f"it does not fit {dtype}")
    return found.astype(target)


def seat_of(spec: GameSpec, seat: int) -> SeatSpec:
    """That seat; ChunkRefused where the game has no such one."""
    if not 0 <= seat < len(spec.seats):
        raise _refused("seat", seat, len(spec.seats) - 1, "there is no such seat")
    return spec.seats[seat]


def observation_of(seat: SeatSpec, given: Mapping[str, Any], frames: int = 1) -> dict[str, Array]:
    """Every leaf by its full name, [*shape], finite and in bounds. Lists may be nested or flat; names with or
    without "observation/"; bytes are the raw little-endian buffer."""
    named = {name if name.startswith("observation/") else f"observation/{name}": value for name, value in given.items()}
    known = {leaf.name for leaf in seat.observation}
    if stray := sorted(named.keys() - known) or sorted(known - named.keys()):
        raise _refused(stray[0][:80], None, sorted(known), "the leaf is missing, or not of this seat")
    return {leaf.name: _leaf(leaf, named[leaf.name], leaf.stacked(frames)) for leaf in seat.observation}


def legal_of(seat: SeatSpec, given: Any) -> Array | None:
    """The mask as uint8 [choices], with at least one legal entry for each choice; None where all are legal."""
    if given is None:
        return None
    mask = array("legal", given, "uint8")
    if mask.shape != (seat.action.masks,) or not seat.action.masks:
        raise _refused("legal", list(mask.shape), [seat.action.masks], "the mask has another length")
    if mask.max() > 1:
        raise _refused("legal", int(mask.max()), [0, 1], "a mask holds 0 and 1")
    if not all(part.any() for part in np.split(mask, np.cumsum(seat.action.choices)[:-1])):
        raise _refused("legal", mask.tolist(), "one legal action", "nothing is legal")
    return mask


def _leaf(leaf: Leaf, value: Any, shape: tuple[int, ...]) -> Array:
    if isinstance(value, bytes):
        try:
            found: Array = np.frombuffer(value, leaf.dtype)
        except ValueError:
            raise _refused(leaf.name, len(value), list(shape), "the buffer has another size") from None
    else:
        found = array(leaf.name, value, leaf.dtype)
    if found.size != np.prod(shape, dtype=int) or (found.ndim > 1 and found.shape != shape):
        raise _refused(leaf.name, list(found.shape), list(shape), "the shape differs")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise _refused(leaf.name, "NaN or inf", "finite numbers", "it holds no number")
    high = float(leaf.high) if leaf.high is not None else float(max(leaf.choices) - 1) if leaf.choices else np.inf
    low = float(leaf.low) if leaf.low is not None else 0.0 if leaf.choices else -np.inf
    slack = 1e-6 * max(1.0, abs(low), abs(high)) if np.isfinite([low, high]).all() else 0.0
    if found.size and not (low - slack <= found.min() and found.max() <= high + slack):
        value = found.min() if found.min() < low else found.max()
        raise _refused(leaf.name, value.item(), [leaf.low, leaf.high], "a value is out of bounds")
    return found.reshape(shape)


def _refused(field: str, value: Any, limit: Any, wrong: str) -> ChunkRefused:
    do = "Send what the game's spec names"
    return ChunkRefused(wrong, where=f"observation, {field}", do=do, field=field, value=value, limit=limit)


def _bad_column(field: str, value: Any, limit: Any, wrong: str) -> ChunkRefused:
    do = "Send nested lists of one shape, in the spec's range"
    return ChunkRefused(wrong, where=f"chunk, {field}", do=do, field=field, value=value, limit=limit)
