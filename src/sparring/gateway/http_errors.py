"""What the gateway refuses by itself, and the HTTP form of every error: a `Problem` as JSON."""

import math
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from sparring.errors import Missing, ModelDamaged, Refused, SparringError, StoreFailed, Unreachable, WireError

Verdict = Literal["new", "had", "taken", "refused", "conflict", "forbidden", "gone", "quota"]  # on a chunk


HOLD_S = 1.0  # who sends too much waits for the refusal, so that asking again at once costs little


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one chunk of an upload; the other fields say why it was refused."""

    verdict: Verdict
    reason: str | UnsetType = UNSET
    field: str | UnsetType = UNSET
    value: Any = UNSET
    limit: Any = UNSET


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, with which field, its value and the limit; and what to do."""

    code: str
    message: str
    field: str = ""
    value: Any = None
    limit: Any = None
    do: str


class Problem(msgspec.Struct, frozen=True):
    """Every answer that is not a success. Of an upload: with a result for each chunk, and the gateway's clock."""

    error: ErrorDetail
    request: str  # the id under which the gateway's log has it
    results: list[Result] | UnsetType = UNSET
    time_ms: int | UnsetType = UNSET


class Unauthorized(Refused):
    """No credential, or one that is not valid. Never says which."""

    code, status = "unauthorized", 401

    def __init__(self) -> None:
        super().__init__("no valid key or token came with it", where="identity", do="Send Authorization: Bearer <key>")


class BadRequest(Refused):
    """A request that HTTP or JSON allows and we do not."""

    code, status = "request", 400


class NotFound(Refused):
    """There is no such place or thing here."""

    code, status = "missing", 404


class TooLate(Refused):
    """The body did not arrive in time."""

    code, status = "slow", 408


class TooLarge(Refused):
    """More bytes than one request may have."""

    code, status = "size", 413


class TooMany(Refused):
    """Over a rate or a quota; `retry_s` says when it is worth asking again."""

    code, status = "rate", 429

    def __init__(self, wrong: str, *, where: str, limit: Any, retry_s: float) -> None:
        super().__init__(wrong, where=where, do=f"Wait {max(1, math.ceil(retry_s))} s", field="rate", limit=limit)
        self.retry_s = retry_s


class ServerBusy(Refused):
    """The queue is full, or the server is stopping; the same request may succeed in a moment."""

    code, status = "busy", 503
    retry_s = 1.0


def printable(value: Any) -> Any:
    """The same, with half surrogate pairs escaped: JSON can say them in a caller's text, and UTF-8 cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return [printable(one) for one in value] if isinstance(value, list | tuple) else value


def described(error: SparringError) -> tuple[int, ErrorDetail]:
    """The status and the description of any error of ours."""

    def detail(code: str, message: str = error.wrong, do: str = error.do) -> ErrorDetail:
        return ErrorDetail(code=code, message=printable(message), do=printable(do))

    match error:
        case Refused():
            about = {name: printable(getattr(error, name)) for name in ("field", "value", "limit")}
            return error.status, ErrorDetail(
                code=error.code, message=printable(error.wrong), do=printable(error.do), **about
            )
        case WireError():
            return 400, detail("wire")
        case Missing():
            return 404, detail("missing")
        case StoreFailed():
            full = "disk is full" in error.wrong
            # What SQLite and the file system said is for the operator's log, not for strangers.
            message = "the disk is full" if full else "the store would not keep it"
            return 507 if full else 503, detail("failed", message, "Send it again later")
        case ModelDamaged():
            return 503, detail("failed", "the model is damaged", "Ask the operator to publish it again")
        case Unreachable():
            return 503, detail("failed", "a server behind it does not answer", "Try again later")
        case _:
            return 500, detail("failed")


def answer(
    error: SparringError,
    request: str,
    results: list[Result] | UnsetType = UNSET,
    time_ms: int | UnsetType = UNSET,
) -> Response:
    """The whole response for an error; `time_ms` lets a client set its clock by ours."""
    status, detail = described(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    if status in (429, 503, 507):
        headers["Retry-After"] = str(max(1, round(getattr(error, "retry_s", 1.0))))
    return json_response(Problem(detail, request, results, time_ms), status, headers)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, encoded by msgspec; numbers that JSON has no word for are refused there."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")
