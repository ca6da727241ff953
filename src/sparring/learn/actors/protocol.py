"""What a topology knows of its actors, the same on every host.

local://   local.py: processes with shared memory
ray://     remote.py: services that a host runs, one call for each rollout or block
central    central.py: environments as services, and one inference service that decides for them
single     in_process.py: the learner's own process
"""

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.protocol import Learner
from sparring.wire.tree import Tree

Played = TypeVar("Played", covariant=True)  # PlayedRollout or StepBlock


class Actors(Protocol):
    """Actors 0 … n - 1, supervised from the first `publish` until `close`."""

    @property
    def actors(self) -> int:
        """How many there are; `spar services scale` may change it, which `tend` carries out."""
        ...

    @property
    def restarts(self) -> int:
        """How many dead actors were replaced."""
        ...

    @property
    def generation(self) -> int:
        """Higher than that of any actor so far: a resumed run begins with it, for other random numbers."""
        ...

    def publish(self, learner: Learner, env_steps: int) -> None:
        """Publish the learner's weights; the first call starts the actors."""
        ...

    def tend(self) -> None:
        """Replace actors that died; TrainingStopped where one keeps dying."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Sleep until an actor has played something or dies, at most so long."""
        ...

    def save(self) -> Tree: ...

    def load(self, state: Tree) -> None:
        """Before the first `publish`."""
        ...

    def close(self) -> None: ...


class AsyncActors(Actors, Protocol[Played]):
    """Actors that play at their own pace, a few rollouts or blocks ahead of the learner."""

    def waiting(self, actor: int) -> int:
        """How many of its rollouts or blocks are there."""
        ...

    def version(self, actor: int) -> int:
        """With which weights its oldest was played."""
        ...

    def take(self, actor: int) -> Played:
        """Its oldest; valid until it is released."""
        ...

    def hand_over(self, actor: int) -> Any:
        """Its oldest, as an argument for a replay shard; it is released."""
        ...

    def lost(self, actor: int) -> None:
        """What was handed over never arrived."""
        ...

    def release(self, actor: int) -> None:
        """What was taken may be overwritten, and the actor may go on."""
        ...

    def broken_off(self) -> list[int]:
        """Actors whose next block does not follow their last, since this was last asked."""
        ...


class SyncActors(Actors, Protocol):
    """Actors that play each version of the weights once, all of them."""

    def missing(self) -> list[int]:
        """Those that have not played the newest version yet."""
        ...

    def take_all(self) -> PlayedRollout:
        """What all played, as one batch; valid until it is released."""
        ...

    def release_all(self) -> None:
        """What was taken may be overwritten."""
        ...

    def replace(self, actor: int) -> None:
        """End a frozen one by force, where that can be done; another takes its number."""
        ...


def wait_until(actors: Actors, condition: Callable[[], bool], timeout_s: float) -> bool:
    """Sleep until the condition holds; False where it does not in time."""
    until = time.monotonic() + timeout_s
    actors.tend()
    while not condition():
        left = until - time.monotonic()
        if left <= 0:
            return False
        actors.wait(left)
        actors.tend()
    return True
