"""What the gateway's answer to an upload means. Decides without I/O."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

KEPT = ("new", "had", "taken")
LATER = ("later", "busy", "failed", "quota")  # of one chunk: not its fault, so it is sent again


class Fate(Enum):
    """What is to be done with a batch as a whole."""

    JUDGED = "each chunk has its verdict"
    AGAIN = "send it again later"
    HALVE = "refused as a whole: send it in smaller parts, the last one alone is at fault"
    CLOSED = "the caller is not let in: keep spooling, try now and then"
    GONE = "the player was erased: remove all that is spooled"


class Result(msgspec.Struct, frozen=True):
    """The verdict on one chunk."""

    verdict: str
    reason: str = ""
    field: str = ""
    value: Any = None
    limit: Any = None


class Problem(msgspec.Struct, frozen=True):
    """The gateway's error object."""

    code: str = ""
    message: str = ""
    field: str = ""
    value: Any = None
    limit: Any = None
    do: str = ""


class Body(msgspec.Struct, frozen=True):
    """What may stand in an answer."""

    results: list[Result] = []
    error: Problem | None = None
    sample_rate: float | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The fate of a batch, and what else the gateway said."""

    fate: Fate
    results: tuple[Result, ...] = ()
    reason: str = ""
    retry_after_s: float | None = None
    sample_rate: float | None = None
    time_ms: int | None = None


def understand(status: int, content: bytes, chunks: int, retry_after: str | None = None) -> Answer:
    """The meaning of an answer to an upload of that many chunks."""
    body = read_body(content)
    reason = body.error.message if body.error is not None and body.error.message else f"the answer was {status}"
    if len(body.results) == chunks:
        return Answer(Fate.JUDGED, tuple(body.results), reason, _seconds(retry_after), _rate(body), body.time_ms)
    fate = _fate(status, body.error.code if body.error else "")
    return Answer(fate, (), reason, _seconds(retry_after), None, body.time_ms)


def read_body(content: bytes) -> Body:
    """The answer's JSON, or an empty one: a proxy in between may answer with anything."""
    try:
        return msgspec.json.decode(content, type=Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Body()


def _fate(status: int, code: str) -> Fate:
    if status == 410 or code == "gone":
        return Fate.GONE
    if status in (401, 403, 404):
        return Fate.CLOSED
    if status in (400, 409, 413, 415, 422):
        return Fate.HALVE
    return Fate.AGAIN  # 408, 429, 5xx, and a 200 that is not the gateway's


def _rate(body: Body) -> float | None:
    rate = body.sample_rate
    return rate if rate is not None and 0.0 <= rate <= 1.0 else None


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After as seconds, an hour at most; the form with a date is not worth a calendar."""
    try:
        return None if retry_after is None else min(3600.0, max(0.0, float(retry_after)))
    except ValueError:
        return None
