"""Who plays for a plan: processes that share memory on this machine, or services of another host."""

from collections.abc import Callable
from typing import Any

from sparring.learn.crew.part import Part
from sparring.learn.crew.protocol import InStep, Players
from sparring.learn.crew.shared import Lanes, Rings
from sparring.learn.plan import Plan


def open_players(
    plan: Plan, part: Part, boldness: Callable[[int, int], float] | None = None, *, passing: bool = False
) -> Players[Any]:
    """Actors at their own pace: of rollouts or of blocks, as the part says. `passing`: others take what they play."""
    if is_local(plan.on):
        return Rings(plan, part, boldness)
    from sparring.learn.crew.hosted import Calls  # whoever stays on one machine needs no sockets

    return Calls(plan, part, boldness, passing=passing)


def open_in_step(plan: Plan, part: Part) -> InStep:
    """Actors that play each version once."""
    if is_local(plan.on):
        return Lanes(plan, part)
    from sparring.learn.crew.hosted import Rounds

    return Rounds(plan, part)


def is_local(url: str) -> bool:
    """Whether shared memory reaches all."""
    return url.startswith("local:")
