"""A callee's error as data, and the typed error that its caller is given."""

import traceback
from typing import Any

from sparring import errors
from sparring.errors import Refused, SparringError
from sparring.services.server import Busy
from sparring.services.solver import CallFailed, Late, Lost

Told = dict[str, str | int | None]
STORY_CHARACTERS = 8000


def told_of(error: BaseException, where: str) -> Told:
    """What a caller elsewhere is told of an error."""
    story = "".join(traceback.format_exception(error))[-STORY_CHARACTERS:]
    told: Told = {"type": type(error).__name__, "wrong": str(error), "where": where, "do": "", "story": story}
    if isinstance(error, SparringError):
        told |= {"wrong": error.wrong, "where": error.where, "do": error.do}
    if isinstance(error, Refused):
        told |= {"field": error.field, "limit": error.limit if isinstance(error.limit, int | str) else None}
    return told


def error_of(told: dict[str, Any]) -> SparringError:
    """The error that was told of; one that is not ours becomes CallFailed with its story."""
    words = {"where": str(told["where"]), "do": str(told["do"] or "Look at its story")}
    wrong, kind = str(told["wrong"]), str(told["type"])
    if kind == "Busy":
        return Busy(wrong, **words, limit=told.get("limit"))
    if kind == "Leaving":  # it was about to end
        return Lost(wrong, **words)
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, Refused):
        return known(wrong, **words, field=told.get("field") or "", limit=told.get("limit"))
    if isinstance(known, type) and issubclass(known, SparringError):
        return known(wrong, **words)
    failed = CallFailed(f"{kind}: {wrong}", **words)
    failed.story = str(told["story"])
    return failed


def lost(who: str, verb: str, why: str) -> Lost:
    """It died under the call."""
    return Lost(f"{who} died under {verb}{': ' if why else ''}{why}", where=who, do="Ask again if twice is fine")


def late(who: str, verb: str, seconds: float, why: str = "") -> Late:
    """It did not answer in time."""
    wrong = f"{who} did not answer {verb} within {seconds:g} s{': ' if why else ''}{why}"
    return Late(wrong, where=who, do="Give it longer, or start more of it")


def gone(who: str, why: str) -> Lost:
    """It is not started again."""
    return Lost(f"{who} is not there any more: {why}", where=who, do="Mend it, and start it anew")
