"""What a topology knows of whoever plays for it, and of the replay that is fed: the same on every host.

local://   shared.py: processes that inherit memory, rings and a board of weights
ray://     hosted.py: services that a host runs, one call for each rollout or block
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sparring.acting.actor import Episodes
from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.protocol import Batch, Learner
from sparring.replay.feeder import Feeder
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

What = TypeVar("What", covariant=True)


class Actors(Protocol):
    """Actors 0 … n - 1, kept alive from the first `publish` on, until `close`."""

    @property
    def actors(self) -> int:
        """How many there are; others may scale them (`spar services scale`), which is met by `tend`."""
        ...

    @property
    def restarts(self) -> int:
        """How often one took a dead one's place."""
        ...

    @property
    def generation(self) -> int:
        """Where the chance of whoever goes on with this run begins."""
        ...

    def publish(self, learner: Learner, env_steps: int) -> None:
        """Show what was learned to all; the first time starts them."""
        ...

    def tend(self) -> None:
        """Notice who died and see to a successor; TrainingStopped where one keeps dying."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Sleep until somebody has something or dies, at most so long."""
        ...

    def save(self) -> Tree: ...

    def load(self, state: Tree) -> None:
        """Before the first `publish`."""
        ...

    def close(self) -> None: ...


class AsyncActors(Actors, Protocol[What]):
    """Actors that play at their own pace, as far ahead as a few rollouts or blocks."""

    def waiting(self, actor: int) -> int:
        """How many of its rollouts or blocks are there."""
        ...

    def version(self, actor: int) -> int:
        """With which weights the oldest that waits was played."""
        ...

    def take(self, actor: int) -> What:
        """The oldest that waits; good until it is released."""
        ...

    def hand_over(self, actor: int) -> Any:
        """The oldest that waits, as an argument for another service; it is released."""
        ...

    def lost(self, actor: int) -> None:
        """What was handed over never came."""
        ...

    def release(self, actor: int) -> None:
        """What was taken may go, and the actor may go on."""
        ...

    def broken_off(self) -> list[int]:
        """Actors whose next does not follow their last, since this was last asked."""
        ...


class SyncActors(Actors, Protocol):
    """Actors that play each version once, all of them."""

    def missing(self) -> list[int]:
        """Who has not played the newest version yet."""
        ...

    def take_all(self) -> PlayedRollout:
        """What all played, as one batch; good until it is released."""
        ...

    def release_all(self) -> None:
        """What was taken may go."""
        ...

    def replace(self, actor: int) -> None:
        """End one that is frozen, where that can be done; another takes its place."""
        ...


@dataclass(frozen=True, slots=True)
class InsertedBlock:
    """A block that replay has taken in."""

    episodes: Episodes
    env_steps: int
    games: int  # that ended
    steps: int
    fed: int = 0  # that came from the store beside them


class Replay(Protocol):
    """What an off-policy learner samples: a table in its own process, or shards elsewhere."""

    feeder: Feeder | None

    def under_way(self) -> int:
        """Blocks that have not arrived yet."""
        ...

    def has_room(self, actor: int) -> bool:
        """Whether one more block of that actor may be under way."""
        ...

    def rest(self, seconds: float) -> bool:
        """Sleep until one of those who hold replay answers; False at once where nobody is to."""
        ...

    def insert(self, players: AsyncActors[Any], actor: int) -> None:
        """Take in the oldest block of an actor."""
        ...

    def arrived(self) -> list[InsertedBlock]:
        """What was taken in since this was last asked."""
        ...

    def break_off(self, actor: int) -> None:
        """What it plays next does not follow what it played last."""
        ...

    def ready(self) -> bool:
        """Whether anything can be sampled."""
        ...

    def sample(self) -> tuple[Batch, Any] | None:
        """A batch, and what `learned` is to be told with; None: it is not there yet."""
        ...

    def learned(self, which: Any, priorities: Array | None) -> None:
        """What the learner said of the batch."""
        ...

    def emptied(self) -> bool:
        """Whether so much of what was taken in is gone that replay must fill again."""
        ...

    def flow(self) -> dict[str, float]: ...

    def save(self) -> Tree: ...

    def load(self, state: Tree) -> None: ...

    def close(self) -> None: ...


def wait_until(crew: Actors, there: Callable[[], bool], timeout_s: float) -> bool:
    """Sleep until something is there; False where it is not in time."""
    until = time.monotonic() + timeout_s
    crew.tend()
    while not there():
        left = until - time.monotonic()
        if left <= 0:
            return False
        crew.wait(left)
        crew.tend()
    return True
