"""One instance of a service as a Ray actor."""

import asyncio
import os
import sys
from collections import Counter
from typing import Any

import ray
from ray._private import state
from ray.exceptions import RayError

from sparring.hosts.dispatcher import Dispatcher, Failure
from sparring.hosts.ray.calls import last_lines
from sparring.hosts.service_path import class_at, constructed
from sparring.services.errors import lost, told_of
from sparring.services.register import verbs_of

Turn = tuple[str, int]  # a caller, and how many calls it has made before
Form = tuple[list[str], dict[int, Any]]  # of what is given: names of the last, and answers under way by their places
TURN_S = 1.0  # for a call that was made before and has not come


class Turns:
    """Lets calls of one caller begin in its order, which Ray does not promise of an async actor."""

    def __init__(self, known: bool) -> None:
        """`known`: callers count from 0. An actor that was started again begins where it finds them."""
        self._known = known
        self._next: dict[str, int] = {}  # by caller
        self._waiting: dict[Turn, asyncio.Future[None]] = {}
        self._come: Counter[str] = Counter()  # by caller: whose turn it is, and who have not begun

    async def come(self, turn: Turn) -> None:
        """Wait until those before have begun; not for ever for one that has not come, for it may have been lost."""
        caller, number = turn
        first = self._next.setdefault(caller, 0 if self._known else number)
        if number > first:
            come = self._waiting[turn] = asyncio.get_running_loop().create_future()
            while not come.done():
                await asyncio.wait([come], timeout=TURN_S)
                if not self._come[caller] and number == min(at for who, at in self._waiting if who == caller):
                    break
            self._waiting.pop(turn, None)
        self._come[caller] += 1

    def begin(self, turn: Turn) -> None:
        """The next may come."""
        caller, number = turn
        self._come[caller] -= 1
        self._next[caller] = max(self._next[caller], number + 1)
        following = self._waiting.get((caller, self._next[caller]))
        if following is not None and not following.done():
            following.set_result(None)


class RayServiceActor:
    """What Ray runs. It is async, so that callers can be gathered while one is worked on."""

    def __init__(self, service: str, name: str, index: int, given: dict[str, Any], around: dict[str, Any]) -> None:
        """`around`: the discovery's URL, and where the driver finds its modules."""
        os.environ["SPARRING_DISCOVERY"] = around["discovery"]
        sys.path.extend(path for path in around["paths"] if path not in sys.path)
        instance = constructed(class_at(service), given, index, _generation())
        self._name = f"{name}/{index}"
        self._desk = Dispatcher(instance, self._name)
        self._turns = Turns(known=_generation() == 0)
        self._again = [verb.name for verb in verbs_of(instance).values() if verb.idempotent]

    async def call(self, verb: str, turn: Turn | None, form: Form, *values: Any) -> Any:
        """The verb's answer or a Failure."""
        return await self._asked(verb, turn, form, values)

    @ray.method(max_task_retries=-1)
    async def call_again(self, verb: str, turn: Turn | None, form: Form, *values: Any) -> Any:
        """The same for an idempotent verb, which Ray asks again after a restart."""
        return await self._asked(verb, turn, form, values)

    async def idempotent(self) -> list[str]:
        """Its verbs that may be asked twice."""
        return self._again

    async def close(self) -> None:
        """Let the instance end in good order."""
        await self._desk.close()

    async def _asked(self, verb: str, turn: Turn | None, form: Form, values: tuple[Any, ...]) -> Any:
        (names, coming), given = form, list(values)
        if turn is not None:
            await self._turns.come(turn)
        try:
            for place, ref in coming.items():
                given[place] = await _answer(ref, self._name)
        finally:
            if turn is not None:
                self._turns.begin(turn)
        count = len(given) - len(names)
        return await self._desk.ask(verb, given[:count], dict(zip(names, given[count:], strict=True)))


async def _answer(ref: Any, who: str) -> Any:
    """What another instance answers, or that it was lost."""
    try:
        return await ref
    except RayError as error:
        return Failure(told_of(lost("whoever was to answer", who, "a call", last_lines(error)), who))


def _generation() -> int:
    """How often Ray has started this actor again."""
    found = state.actors(ray.get_runtime_context().get_actor_id())
    return int(found.get("NumRestarts", 0))
