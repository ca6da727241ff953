"""One instance of a service as a Ray actor."""

import asyncio
import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray
from ray._private import state
from ray.exceptions import RayError

from sparring.hosts.ray.calls import Failure, last_lines, plain
from sparring.hosts.service_class import class_at, construct
from sparring.services.errors import Overloaded, encode_error, lost
from sparring.services.executor import Executor, Request
from sparring.services.register import verbs_of

CallNumber = tuple[str, int]  # a caller, and how many calls it has made before
Form = tuple[list[str], dict[int, Any]]  # of arguments: names of the last, and answers under way by their places
ORDER_S = 1.0  # that a call waits for one that was made before it and has not come
FULL_S = 0.005  # between two looks for a place in a full queue


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
        sys.path.extend(path for path in around["paths"] if path not in sys.path)
        self._instance = construct(class_at(service), given, index, _generation())
        self._name = f"{name}/{index}"
        self._executor = Executor(self._instance, self._name)
        self._order = CallOrder(known=_generation() == 0)

    async def call(self, verb: str, number: CallNumber | None, form: Form, *values: Any) -> Any:
        """The verb's answer as plain data, or a Failure."""
        return await self._call(verb, number, form, values)

    @ray.method(max_task_retries=-1)
    async def call_again(self, verb: str, number: CallNumber | None, form: Form, *values: Any) -> Any:
        """The same for an idempotent verb, which Ray calls again after a restart."""
        return await self._call(verb, number, form, values)

    async def idempotent(self) -> list[str]:
        """Its verbs that may be called twice."""
        return [verb.name for verb in verbs_of(self._instance).values() if verb.idempotent]

    async def close(self) -> None:
        """Let the instance end in good order."""
        await asyncio.to_thread(self._executor.close, 0.0)
        close = getattr(self._instance, "close", None)
        if callable(close):
            await asyncio.to_thread(close)

    async def _call(self, verb: str, number: CallNumber | None, form: Form, values: tuple[Any, ...]) -> Any:
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
