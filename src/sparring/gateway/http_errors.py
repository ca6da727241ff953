"""What the gateway refuses by itself, and the HTTP form of every error.

{"error": {"code", "message", "field", "value", "limit", "do"}, "request": id}
"""

from typing import Any

import msgspec
from starlette.responses import Response

from sparring.errors import Missing, Refused, SparringError, StoreFailed, Unreachable, WireError


class Unauthorized(Refused):
    """No credential, or one that is not valid. Never says which."""

    code = "unauthorized"
    status = 401

    def __init__(self) -> None:
        super().__init__("no valid key or token came with it", where="identity", do="Send Authorization: Bearer <key>")


class BadRequest(Refused):
    """A request that HTTP or JSON allows and we do not."""

    code = "request"
    status = 400


class NotFound(Refused):
    """There is no such place or thing here."""

    code = "missing"
    status = 404


class TooLate(Refused):
    """The body did not arrive in time."""

    code = "slow"
    status = 408


class TooLarge(Refused):
    """More bytes than one request may have."""

    code = "size"
    status = 413


class TooMany(Refused):
    """Over a rate or a quota; `retry_s` says when it is worth asking again."""

    code = "rate"
    status = 429

    def __init__(self, wrong: str, *, where: str, limit: Any, retry_s: float) -> None:
        super().__init__(wrong, where=where, do=f"Wait {retry_s:.0f} s", field="rate", limit=limit)
        self.retry_s = retry_s


class ServerBusy(Refused):
    """The queue is full, or the server is stopping; the same request may succeed in a moment."""

    code = "busy"
    status = 503
    retry_s = 1.0


def described(error: SparringError) -> tuple[int, dict[str, Any]]:
    """The status and the error object for any error of ours."""
    said: dict[str, Any] = {"message": error.wrong, "field": "", "value": None, "limit": None, "do": error.do}
    match error:
        case Refused():
            said |= {"field": error.field, "value": error.value, "limit": error.limit}
            return error.status, {"code": error.code, **said}
        case WireError():
            return 400, {"code": "wire", **said}
        case Missing():
            return 404, {"code": "missing", **said}
        case StoreFailed():
            full = "disk is full" in error.wrong
            # What SQLite and the file system said is for the operator's log, not for strangers.
            said |= {
                "message": "the disk is full" if full else "the store would not keep it",
                "do": "Send it again later",
            }
            return 507 if full else 503, {"code": "failed", **said}
        case Unreachable():
            return 503, {
                "code": "failed",
                **said | {"message": "a server behind it does not answer", "do": "Try again later"},
            }
        case _:
            return 500, {"code": "failed", **said}


def answer(
    error: SparringError, request: str, results: list[dict[str, Any]] | None = None, time_ms: int | None = None
) -> Response:
    """The whole response for an error; `time_ms` lets a client set its clock by ours."""
    status, said = described(error)
    body: dict[str, Any] = {"error": said, "request": request}
    if results is not None:
        body["results"] = results
    if time_ms is not None:
        body["time_ms"] = time_ms
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    if status in (429, 503, 507):
        headers["Retry-After"] = str(max(1, round(getattr(error, "retry_s", 1.0))))
    return json_response(body, status, headers)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, encoded by msgspec; numbers that JSON has no word for are refused there."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")
