"""What can go wrong with a call, and how a callee's error travels: as data, and typed again where it arrives."""

import traceback
from typing import Any

from sparring import errors
from sparring.errors import Refused, SparringError, Unreachable

TRACEBACK_CHARACTERS = 8000
ErrorData = dict[str, str | int | None]  # an error on its way


class CallFailed(SparringError):
    """The method itself failed; `story` is its traceback, as text."""


class CallTimeout(Unreachable):
    """No answer within the deadline. It may have been done all the same."""


class CallLost(Unreachable):
    """The instance died under the call. It may have been done all the same."""


class ShuttingDown(Unreachable):
    """The instance is about to end and did not begin the call: another one may be asked."""


class Overloaded(Refused):
    """So many calls wait that one more is not taken."""

    code = "busy"
    status = 503


_OF_CALLS = {one.__name__: one for one in (CallTimeout, CallLost, ShuttingDown, Overloaded)}


def encode_error(error: BaseException, where: str) -> ErrorData:
    """An error as data for a caller in another process."""
    data: ErrorData = {
        "type": type(error).__name__,
        "wrong": str(error),
        "where": where,
        "do": "",
        "traceback": traceback_of(error),
    }
    if isinstance(error, SparringError):
        data |= {"wrong": error.wrong, "where": error.where, "do": error.do}
    if isinstance(error, Refused):
        data |= {"field": error.field, "limit": error.limit if isinstance(error.limit, int | str) else None}
    return {name: _plain(value) for name, value in data.items()}


def _plain(value: str | int | None) -> str | int | None:
    """What every message can hold: text may have characters that UTF-8 lacks, and numbers more than 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if value is None or -(1 << 63) <= value < 1 << 63 else str(value)


def traceback_of(error: BaseException) -> str:
    """Its traceback as text, the end of it where it is long."""
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]


def error_of(data: dict[str, Any]) -> SparringError:
    """The error behind the data; one that is not of this package becomes CallFailed. The callee's traceback is also a
    note of the error, so that a traceback here ends with the one from there, and that of a third process with both."""
    of_call = _OF_CALLS.get(data["type"])
    known = of_call or getattr(errors, data["type"], None)
    wrong = data["wrong"]
    if not (isinstance(known, type) and issubclass(known, SparringError)):
        known = CallFailed
        if data["type"] != CallFailed.__name__:  # else of a service that the callee called itself
            wrong = f"{data['type']}: {wrong}"
    words = {"where": data["where"], "do": data["do"] or "Look at its traceback"}
    if issubclass(known, Refused):
        words |= {"field": data.get("field", ""), "limit": data.get("limit")}
    error = known(wrong, **words)
    if of_call is None:  # the method raised it
        error.story = data["traceback"]
        error.add_note(f"Where it was raised, in another process:\n{error.story}")
    return error


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
    return CallLost(f"{who} is not there any more: {why}", where=who, do="Repair it, and start it again")
