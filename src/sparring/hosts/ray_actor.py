"""One instance of a service as a Ray actor."""

import asyncio
import os
import sys
from typing import Any

import ray
from ray._private import state

from sparring.hosts.desk import Desk
from sparring.hosts.naming import class_at, constructed
from sparring.services.register import verbs_of

Turn = tuple[str, int]  # a caller, and how many calls it has made before
TURN_S = 5.0


class Turns:
    """Lets calls of one caller begin in its order, which Ray does not promise of an async actor."""

    def __init__(self, known: bool) -> None:
        """`known`: callers count from 0. An actor that was started again begins where it finds them."""
        self._known = known
        self._next: dict[str, int] = {}  # by caller
        self._waiting: dict[Turn, asyncio.Future[None]] = {}

    async def come(self, turn: Turn) -> None:
        """Wait until those before have begun; not for ever, since one may have been lost on its way."""
        caller, number = turn
        first = self._next.setdefault(caller, 0 if self._known else number)
        if number > first:
            come = self._waiting[turn] = asyncio.get_running_loop().create_future()
            await asyncio.wait([come], timeout=TURN_S)
            self._waiting.pop(turn, None)
        self._next[caller] = max(self._next[caller], number + 1)
        following = self._waiting.get((caller, self._next[caller]))
        if following is not None and not following.done():
            following.set_result(None)


class Actor:
    """What Ray runs. It is async, so that callers can be gathered while one is worked on."""

    def __init__(self, service: str, name: str, index: int, given: dict[str, Any], around: dict[str, Any]) -> None:
        """`around`: the discovery's URL, and where the driver finds its modules."""
        os.environ["SPARRING_DISCOVERY"] = around["discovery"]
        sys.path.extend(path for path in around["paths"] if path not in sys.path)
        instance = constructed(class_at(service), given, index, _generation())
        self._desk = Desk(instance, f"{name}/{index}")
        self._turns = Turns(known=_generation() == 0)
        self._again = [verb.name for verb in verbs_of(instance).values() if verb.idempotent]

    async def call(self, verb: str, turn: Turn | None, names: list[str], *values: Any) -> Any:
        """The verb's answer or a Failure; the last values are those of `names`."""
        return await self._asked(verb, turn, names, values)

    @ray.method(max_task_retries=-1)
    async def call_again(self, verb: str, turn: Turn | None, names: list[str], *values: Any) -> Any:
        """The same for an idempotent verb, which Ray asks again after a restart."""
        return await self._asked(verb, turn, names, values)

    async def idempotent(self) -> list[str]:
        """Its verbs that may be asked twice."""
        return self._again

    async def close(self) -> None:
        """Let the instance end in good order."""
        await self._desk.close()

    async def _asked(self, verb: str, turn: Turn | None, names: list[str], values: tuple[Any, ...]) -> Any:
        if turn is not None:
            await self._turns.come(turn)
        count = len(values) - len(names)
        return await self._desk.ask(verb, values[:count], dict(zip(names, values[count:], strict=True)))


def _generation() -> int:
    """How often Ray has started this actor again."""
    found = state.actors(ray.get_runtime_context().get_actor_id())
    return int(found.get("NumRestarts", 0))
