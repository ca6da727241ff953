"""One instance of a service as a Ray actor."""

import os
import sys
from typing import Any

import ray
from ray._private import state

from sparring.hosts.desk import Desk
from sparring.hosts.naming import class_at, constructed


class Actor:
    """What Ray runs. It is async, so that callers can be gathered while one is worked on."""

    def __init__(self, service: str, name: str, index: int, given: dict[str, Any], around: dict[str, Any]) -> None:
        """`around`: the discovery's URL, and where the driver finds its modules."""
        os.environ["SPARRING_DISCOVERY"] = around["discovery"]
        sys.path.extend(path for path in around["paths"] if path not in sys.path)
        instance = constructed(class_at(service), given, index, _generation())
        self._desk = Desk(instance, f"{name}/{index}")

    async def call(self, verb: str, names: list[str], *values: Any) -> Any:
        """The verb's answer or a Failure; the last values are those of `names`."""
        return await self._asked(verb, names, values)

    @ray.method(max_task_retries=-1)  # type: ignore[untyped-decorator]
    async def call_again(self, verb: str, names: list[str], *values: Any) -> Any:
        """The same for an idempotent verb, which Ray asks again after a restart."""
        return await self._asked(verb, names, values)

    async def close(self) -> None:
        """Let the instance end in good order."""
        await self._desk.close()

    async def _asked(self, verb: str, names: list[str], values: tuple[Any, ...]) -> Any:
        count = len(values) - len(names)
        return await self._desk.ask(verb, values[:count], dict(zip(names, values[count:], strict=True)))


def _generation() -> int:
    """How often Ray has started this actor again."""
    found = state.actors(ray.get_runtime_context().get_actor_id())
    return int(found.get("NumRestarts", 0))
