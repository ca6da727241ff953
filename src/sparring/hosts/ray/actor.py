"""One instance of a service as a Ray actor, and calls to it: Ray's own, with our errors."""

import asyncio
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
import ray
from ray._private import state
from ray.exceptions import GetTimeoutError, RayError

from sparring.errors import SparringError, WireError
from sparring.hosts.protocol import construct
from sparring.services.errors import ErrorData, Overloaded, encode_error, error_of, gone, late, lost
from sparring.services.executor import Executor, Request
from sparring.services.register import verbs_of

DEADLINE_S = 30.0
LAST_LINES = 4
LOOK_S = 0.001  # between two looks at what is there
_PLAIN = (bool, int, float, str, bytes, type(None))
CallNumber = tuple[str, int]  # a caller, and how many calls it has made before
Form = tuple[list[str], dict[int, Any]]  # of arguments: names of the last, and answers under way by their places
ORDER_S = 1.0  # that a call waits for one that was made before it and has not come
FULL_S = 0.005  # between two looks for a place in a full queue


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that is an error. As an argument of another call it fails that one too."""

    error: ErrorData


def plain(tree: Any) -> Any:
    """What a message could carry, as it would arrive: tuples as lists, numbers as Python's own. WireError else."""
    if isinstance(tree, np.ndarray):
        if tree.dtype.hasobject:
            raise WireError(f"an array of {tree.dtype}", where="call", do="Send plain data and arrays")
        return tree
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, _PLAIN):
        return tree
    if isinstance(tree, dict):
        return {name: plain(one) for name, one in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(one) for one in tree]
    raise WireError(f"a {type(tree).__name__} has no place in a call", where="call", do="Send plain data and arrays")


@dataclass(slots=True, eq=False)
class RayCallee:
    """Whom to call: its Ray actor, its idempotent verbs, and how it is named in errors."""

    who: str
    actor: Any
    idempotent: frozenset[str]

    def why_gone(self) -> str:
        """Of one that is not started again."""
        return ""

    def why_late(self) -> str:
        """What is known of one that does not answer."""
        return ""


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
        try:
            found = ray.get(self.ref, timeout=patience)
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


def call(
    callee: RayCallee, verb: str, args: Sequence[Any], named: dict[str, Any], number: CallNumber | None = None
) -> RayPending:
    """Begin a call; answers under way go as their references, as shared values do. Those with a number begin in their
    order, others in any."""
    method = callee.actor.call_again if verb in callee.idempotent else callee.actor.call
    given = (*args, *named.values())
    # Inside of something Ray leaves them alone, and it is the callee who waits for them. As arguments of their own one
    # that failed would keep the whole call from its callee, which would then wait in vain for it to begin.
    coming = {place: one.ref for place, one in enumerate(given) if isinstance(one, RayPending)}
    values = [
        None if place in coming else one if isinstance(one, ray.ObjectRef) else plain(one)
        for place, one in enumerate(given)
    ]
    return RayPending(callee, verb, method.remote(verb, number, (list(named), coming), *values))


def last_lines(error: RayError) -> str:
    """What Ray says of it in the end."""
    return " | ".join(str(error).strip().splitlines()[-LAST_LINES:])


def _ours(error: RayError, callee: RayCallee, verb: str, patience: float) -> SparringError:
    if isinstance(error, GetTimeoutError):
        return late(callee.who, callee.who, verb, patience, callee.why_late())
    if why := callee.why_gone():
        return gone(callee.who, why)
    return lost(callee.who, callee.who, verb, last_lines(error))


class CallOrder:
    """Lets the calls of one caller begin in its order, which Ray does not promise of an async actor."""

    def __init__(self, known: bool) -> None:
        """`known`: callers count from 0. An actor that was restarted begins with the first number that it sees."""
        self._known = known
        self._next: dict[str, int] = {}  # by caller
        self._waiting: dict[CallNumber, asyncio.Future[None]] = {}
        self._arrived: Counter[str] = Counter()  # by caller: calls that may begin, and have not

    async def wait(self, call: CallNumber) -> None:
        """Wait until those before have begun; not for ever for one that has not come, for it may have been lost."""
        caller, number = call
        first = self._next.setdefault(caller, 0 if self._known else number)
        if number > first:
            may_begin = self._waiting[call] = asyncio.get_running_loop().create_future()
            while not may_begin.done():
                await asyncio.wait([may_begin], timeout=ORDER_S)
                if not self._arrived[caller] and number == min(at for who, at in self._waiting if who == caller):
                    break
            self._waiting.pop(call, None)
        self._arrived[caller] += 1

    def begin(self, call: CallNumber) -> None:
        """The next may begin."""
        caller, number = call
        self._arrived[caller] -= 1
        self._next[caller] = max(self._next[caller], number + 1)
        following = self._waiting.get((caller, self._next[caller]))
        if following is not None and not following.done():
            following.set_result(None)


class RayServiceActor:
    """What Ray runs. It is async, so that calls can be gathered into batches while one is worked on."""

    def __init__(self, service: str, name: str, index: int, given: dict[str, Any], around: dict[str, Any]) -> None:
        """`around`: the discovery's URL, and where the driver finds its modules."""
        os.environ["SPARRING_DISCOVERY"] = around["discovery"]
        # Processes that the instance starts (a learner's actors) find this cluster by it, and so the services above.
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        sys.path.extend(path for path in around["paths"] if path not in sys.path)
        self._instance = construct(service, given, index, _generation())
        self._name = f"{name}/{index}"
        self._executor = Executor(self._instance, self._name)
        self._order = CallOrder(known=_generation() == 0)

    async def call(self, verb: str, number: CallNumber | None, form: Form, *values: Any) -> Any:
        """The verb's answer as plain data, or a Failure."""
        (names, coming), given = form, list(values)
        if number is not None:
            await self._order.wait(number)
        try:
            for place, ref in coming.items():
                given[place] = await _answer(ref, self._name)
        finally:
            if number is not None:
                self._order.begin(number)
        if (failed := next((one for one in given if isinstance(one, Failure)), None)) is not None:
            return failed
        count = len(given) - len(names)
        return await self._execute(verb, given[:count], dict(zip(names, given[count:], strict=True)))

    @ray.method(max_task_retries=-1)
    async def call_again(self, verb: str, number: CallNumber | None, form: Form, *values: Any) -> Any:
        """The same for an idempotent verb, which Ray calls again after a restart."""
        return await self.call(verb, number, form, *values)

    async def idempotent(self) -> list[str]:
        """Its verbs that may be called twice."""
        return [verb.name for verb in verbs_of(self._instance).values() if verb.idempotent]

    async def close(self) -> None:
        """Let the instance end in good order."""
        await asyncio.to_thread(self._executor.close, 0.0)
        close = getattr(self._instance, "close", None)
        if callable(close):
            await asyncio.to_thread(close)

    async def _execute(self, verb: str, args: Sequence[Any], named: dict[str, Any]) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def reply(result: Any, error: BaseException | None) -> None:
            try:
                value = plain(result) if error is None else Failure(encode_error(error, self._name))
            except Exception as wrong:  # noqa: BLE001  (whatever a method answers is told to its caller)
                value = Failure(encode_error(wrong, self._name))
            loop.call_soon_threadsafe(_settle, answer, value)

        try:
            queue = self._executor.queue_of(verb)
            request = Request(args, named, math.inf, reply if queue.verb.response else None)
            while True:
                try:
                    self._executor.submit(queue, request)
                    break
                except Overloaded as full:
                    if full.limit != "wait":
                        raise
                    await asyncio.sleep(FULL_S)
        except Exception as error:  # noqa: BLE001  (told to the caller)
            return Failure(encode_error(error, self._name))
        return await answer if queue.verb.response else None


def _settle(answer: "asyncio.Future[Any]", value: Any) -> None:
    if not answer.done():  # its caller may have been cancelled
        answer.set_result(value)


async def _answer(ref: Any, who: str) -> Any:
    """What another instance answers, or that it was lost."""
    try:
        return await ref
    except RayError as error:
        return Failure(encode_error(lost("the instance that was to answer", who, "a call", last_lines(error)), who))


def _generation() -> int:
    """How often Ray has restarted this actor."""
    found = state.actors(ray.get_runtime_context().get_actor_id())
    return int(found.get("NumRestarts", 0))
