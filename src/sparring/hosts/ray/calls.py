"""Calls to a Ray actor that holds a service: Ray's own, with our errors."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError

from sparring.errors import SparringError, WireError
from sparring.services.errors import CallFailed, ErrorData, error_of, gone, late, lost

DEADLINE_S = 30.0
LAST_LINES = 4
LOOK_S = 0.001  # between two looks at what is there
MAX_DEPTH = 64
_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that is an error. As an argument of another call it fails that one too."""

    error: ErrorData


def plain(tree: Any, depth: int = 0) -> Any:
    """What a message could carry, as it would arrive: tuples as lists, numbers as Python's own. WireError else."""
    if isinstance(tree, np.ndarray):
        if tree.dtype.hasobject:
            raise WireError(f"an array of {tree.dtype}", where="call", do="Send plain data and arrays")
        return tree
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, _PLAIN):
        return tree
    if depth < MAX_DEPTH and isinstance(tree, dict):
        return {name: plain(one, depth + 1) for name, one in tree.items()}
    if depth < MAX_DEPTH and isinstance(tree, list | tuple):
        return [plain(one, depth + 1) for one in tree]
    raise WireError(f"a {type(tree).__name__} has no place in a call", where="call", do="Send plain data and arrays")


@dataclass(slots=True, eq=False)
class RayCallee:
    """Whom to call: its Ray actor, its idempotent verbs, and how it is named in errors."""

    who: str
    actor: Any
    idempotent: frozenset[str]

    def order(self) -> tuple[str, int] | None:
        """Of the next call: who calls, and how many calls were before; None: they may begin in any order."""
        return None

    def why_gone(self) -> str:
        """Of one that is not started again."""
        return ""

    def why_late(self) -> str:
        """What is known of one that does not answer."""
        return ""


@dataclass(frozen=True, slots=True)
class RayShared:
    """A value in Ray's object store."""

    ref: Any


class RayPending:
    """An answer under way."""

    __slots__ = ("__weakref__", "_callee", "_verb", "here", "over", "ref")

    def __init__(self, callee: RayCallee, verb: str, ref: Any) -> None:
        self._callee, self._verb, self.ref = callee, verb, ref
        self.here, self.over = True, False

    def done(self) -> bool:
        if not self.over:
            _DONE_POLL.look(self)
        return self.over

    def result(self, seconds: float | None = None) -> Any:
        patience = DEADLINE_S if seconds is None else seconds
        return self.answered(lambda: ray.get(self.ref, timeout=patience), patience)

    def answered(self, get: Callable[[], Any], patience: float = 0.0) -> Any:
        """What `get` gets of Ray, or what its error is here."""
        try:
            found = get()
        except RayError as error:
            raise _ours(error, self._callee, self._verb, patience) from None
        if isinstance(found, Failure):
            raise error_of(found.error)
        return found


class _DonePoll:
    """Whether answers are there. Ray takes as long to say so of many as of one, and a learner asks of all of them again
    and again: so one question to Ray is for all of them."""

    def __init__(self) -> None:
        self._asked: WeakSet[RayPending] = WeakSet()
        self._looked_s = 0.0
        self._lock = Lock()

    def look(self, one: RayPending) -> None:
        """Say of this one whether it is over, and of the others; nothing where all were looked at just now."""
        with self._lock:
            if one in self._asked and time.monotonic() - self._looked_s < LOOK_S:
                return
            self._asked.add(one)
            for here in (True, False):
                by_ref = {each.ref: each for each in self._asked if each.here is here}
                ready = (
                    ray.wait(list(by_ref), num_returns=len(by_ref), timeout=0, fetch_local=here)[0] if by_ref else []
                )
                for ref in ready:
                    by_ref[ref].over = True
                    self._asked.discard(by_ref[ref])
            self._looked_s = time.monotonic()


_DONE_POLL = _DonePoll()


def call(callee: RayCallee, verb: str, args: Sequence[Any], named: dict[str, Any]) -> RayPending:
    """Begin a call; answers under way and shared values go as their references."""
    again = verb in callee.idempotent
    method = callee.actor.call_again if again else callee.actor.call
    given = (*args, *named.values())
    # Inside of something Ray leaves them alone, and it is the callee who waits for them. As arguments of their own one
    # that failed would keep the whole call from its callee, which would then wait in vain for it to begin.
    coming = {place: one.ref for place, one in enumerate(given) if isinstance(one, RayPending)}
    values = [None if place in coming else _given(one) for place, one in enumerate(given)]
    return RayPending(callee, verb, method.remote(verb, callee.order(), (list(named), coming), *values))


def _given(argument: Any) -> Any:
    return argument.ref if isinstance(argument, RayShared) else plain(argument)


def last_lines(error: RayError) -> str:
    """What Ray says of it in the end."""
    return " | ".join(str(error).strip().splitlines()[-LAST_LINES:])


def _of_constructor(error: RayError) -> bool:
    return isinstance(error, RayTaskError) and "Actor.__init__()" in str(error)


def _ours(error: RayError, callee: RayCallee, verb: str, patience: float) -> SparringError:
    if isinstance(error, GetTimeoutError):
        return late(callee.who, callee.who, verb, patience, callee.why_late())
    if why := callee.why_gone():
        return gone(callee.who, why)
    of_callee = isinstance(error, RayTaskError) and not isinstance(error, RayActorError | ObjectLostError)
    if not of_callee or _of_constructor(error):
        return lost(callee.who, callee.who, verb, last_lines(error))
    failed = CallFailed(str(error).strip().splitlines()[-1], where=callee.who, do="Look at its traceback")
    failed.story = str(error)
    return failed
