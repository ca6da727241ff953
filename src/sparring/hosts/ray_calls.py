"""Calls to a Ray actor that holds a service: Ray's own, with our errors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError

from sparring.errors import SparringError
from sparring.hosts.desk import Failure, plain
from sparring.services.failure import CallFailed, error_of, gone, late, lost

DEADLINE_S = 30.0
LAST_LINES = 4


class Callee(Protocol):
    """Whom to ask: its Ray actor, its verbs that may be asked twice, and how it is called in errors."""

    @property
    def who(self) -> str: ...

    @property
    def actor(self) -> Any: ...

    @property
    def idempotent(self) -> frozenset[str]: ...

    def turn(self) -> tuple[str, int] | None:
        """Of the next call: who calls, and how many were before; None: its order is of no account."""
        ...

    def why_gone(self) -> str:
        """Of one that is not started again."""
        ...

    def why_late(self) -> str:
        """What is known of one that does not answer."""
        ...


@dataclass(frozen=True, slots=True)
class RayShared:
    """A value in Ray's object store."""

    ref: Any


class RayPending:
    """An answer under way."""

    __slots__ = ("_callee", "_over", "_verb", "ref")

    def __init__(self, callee: Callee, verb: str, ref: Any) -> None:
        self._callee, self._verb, self.ref = callee, verb, ref
        self._over = False

    def done(self) -> bool:
        if not self._over:  # Ray takes its time to say so, and a learner asks often
            self._over = bool(ray.wait([self.ref], timeout=0)[0])
        return self._over

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
            raise error_of(found.told)
        return found


def ask(callee: Callee, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> RayPending:
    """Begin a call; answers under way and shared values go as their references."""
    again = verb in callee.idempotent
    method = callee.actor.call_again if again else callee.actor.call
    given = (*args, *named.values())
    # Inside of something Ray leaves them alone, and it is the callee who waits for them. As arguments of their own one
    # that failed would keep the whole call from its callee, who then would wait for that call's turn in vain.
    coming = {place: one.ref for place, one in enumerate(given) if isinstance(one, RayPending)}
    values = [None if place in coming else _given(one) for place, one in enumerate(given)]
    return RayPending(callee, verb, method.remote(verb, callee.turn(), (list(named), coming), *values))


def _given(argument: Any) -> Any:
    return argument.ref if isinstance(argument, RayShared) else plain(argument)


def last_lines(error: RayError) -> str:
    """What Ray says of it in the end."""
    return " | ".join(str(error).strip().splitlines()[-LAST_LINES:])


def _of_constructor(error: RayError) -> bool:
    return isinstance(error, RayTaskError) and "Actor.__init__()" in str(error)


def _ours(error: RayError, callee: Callee, verb: str, patience: float) -> SparringError:
    if isinstance(error, GetTimeoutError):
        return late(callee.who, callee.who, verb, patience, callee.why_late())
    if why := callee.why_gone():
        return gone(callee.who, why)
    of_callee = isinstance(error, RayTaskError) and not isinstance(error, RayActorError | ObjectLostError)
    if not of_callee or _of_constructor(error):
        return lost(callee.who, callee.who, verb, last_lines(error))
    failed = CallFailed(str(error).strip().splitlines()[-1], where=callee.who, do="Look at its story")
    failed.story = str(error)
    return failed
