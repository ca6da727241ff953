"""What can go wrong with a call, and how a callee's error travels: as data, and typed again where it arrives."""

import traceback
from typing import Any

from sparring import errors
from sparring.errors import Refused, SparringError, Unreachable

STORY_CHARACTERS = 8000
Told = dict[str, str | int | None]  # an error on its way


class CallFailed(SparringError):
    """The method itself failed; `story` is its traceback, as text."""


class CallTimeout(Unreachable):
    """No answer within the deadline. It may have been done all the same."""


class CallLost(Unreachable):
    """The instance died under the call. It may have been done all the same."""


class ShuttingDown(Unreachable):
    """The instance is about to end and did not begin the call: another one may be asked."""


class Overloaded(Refused):
    """So many wait that one more is not taken."""

    code = "busy"
    status = 503


_OF_CALLS: dict[str, type[Unreachable]] = {one.__name__: one for one in (CallTimeout, CallLost, ShuttingDown)}


def told_of(error: BaseException, where: str) -> Told:
    """What a caller elsewhere is told of an error."""
    told: Told = {
        "type": type(error).__name__,
        "wrong": str(error),
        "where": where,
        "do": "",
        "story": story_of(error),
    }
    if isinstance(error, SparringError):
        told |= {"wrong": error.wrong, "where": error.where, "do": error.do}
    if isinstance(error, Refused):
        told |= {"field": error.field, "limit": error.limit if isinstance(error.limit, int | str) else None}
    return {name: _plain(value) for name, value in told.items()}


def _plain(value: str | int | None) -> str | int | None:
    """What every message can hold: text may have characters that UTF-8 lacks, and numbers more than 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if value is None or -(1 << 63) <= value < 1 << 63 else str(value)


def story_of(error: BaseException) -> str:
    """Its traceback, the end of it where it is long."""
    return "".join(traceback.format_exception(error))[-STORY_CHARACTERS:]


def error_of(told: dict[str, Any]) -> SparringError:
    """The error that was told of, with its story; one that is not ours becomes CallFailed. The story is also a note of
    the error, so that a traceback here ends with the one from there, and one of three processes tells of all."""
    words = {"where": told["where"], "do": told["do"] or "Look at its story"}
    if told["type"] == "Overloaded":
        return Overloaded(told["wrong"], **words, limit=told.get("limit"))
    if (ours := _OF_CALLS.get(told["type"])) is not None:
        return ours(told["wrong"], **words)
    error = _raised(told, words)
    error.story = told["story"]
    error.add_note(f"Where it was raised, in another process:\n{error.story}")
    return error


def _raised(told: dict[str, Any], words: dict[str, str]) -> SparringError:
    """What a method raised."""
    known = getattr(errors, told["type"], None)
    if isinstance(known, type) and issubclass(known, Refused):
        return known(told["wrong"], **words, field=told.get("field", ""), limit=told.get("limit"))
    if isinstance(known, type) and issubclass(known, SparringError):
        return known(told["wrong"], **words)
    again = told["type"] == CallFailed.__name__  # of a service that it called itself
    return CallFailed(told["wrong"] if again else f"{told['type']}: {told['wrong']}", **words)


def lost(who: str, where: str, verb: str, why: str = "") -> CallLost:
    """It died under the call."""
    return CallLost(f"{who} died under {verb}{': ' if why else ''}{why}", where=where, do="Ask again if twice is fine")


def late(who: str, where: str, verb: str, seconds: float | None = None, why: str = "") -> CallTimeout:
    """It did not answer in time."""
    limit = "in time" if seconds is None else f"within {seconds:g} s"
    do = "Give it longer (solver.within(seconds), result(seconds)), or start more of it"
    return CallTimeout(f"{who} did not answer {verb} {limit}{': ' if why else ''}{why}", where=where, do=do)


def gone(who: str, why: str) -> CallLost:
    """It is not started again."""
    return CallLost(f"{who} is not there any more: {why}", where=who, do="Mend it, and start it anew")


def pause_s(busy: Overloaded, attempt: int, now: float, until: float) -> float:
    """How long to wait for a place; the error itself where nobody should, or can any more."""
    if busy.limit != "wait":
        raise busy
    if now > until:
        raise CallTimeout(busy.wrong, where=busy.where, do="Give it longer, or start more of it") from None
    return float(min(0.05, 0.001 * 2 ** min(attempt, 6)))
