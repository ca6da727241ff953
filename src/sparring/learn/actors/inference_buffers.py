"""The steps that inference has closed, until the learner takes them: rollouts, or blocks of steps.

A rollout is whole as soon as one worker has made all its ticks; slower ones have padding, and a stream that broke off
is truncated there. A block is whole after so many ticks of any worker; where streams broke off it ends early, and the
next one says that it follows nothing.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from sparring.acting.actor import Actor
from sparring.acting.rollout import Rollout
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.rollout_slots import RolloutRing, RolloutSlot
from sparring.learn.actors.step_blocks import StepBlockRing
from sparring.replay.steps import Steps
from sparring.wire.chunk import Array


@dataclass(slots=True)
class _Writing:
    """A rollout that is not whole yet."""

    slot: RolloutSlot
    rollout: Rollout
    oldest: int  # version of a decision in it
    ticks: Array  # of each worker


class RolloutBuffer:
    """For algorithms fed with trajectories. At each tick: has_room, add, cut where streams broke off, finish."""

    def __init__(self, spec: ActorSpec, workers: int) -> None:
        self._spec, self._workers = spec, workers
        ring = spec.open_ring()
        assert isinstance(ring, RolloutRing)
        self._rollouts = ring
        self._writing: _Writing | None = None

    def has_room(self, actor: Actor, version: int) -> bool:
        """Whether one more tick fits; not where too many whole rollouts wait."""
        if self._writing is None and self._rollouts.ring.room():
            slot = self._rollouts.open_slot(actor)
            rollout = actor.open_rollout(self._spec.ticks, slot.places)
            self._writing = _Writing(slot, rollout, version, np.zeros(self._workers, np.int64))
        return self._writing is not None

    def add(self, actor: Actor, steps: Steps, workers: Array, oldest: int) -> None:
        """The steps that a tick of those workers closed, decided with version `oldest` or a later one."""
        writing = self._open
        writing.oldest = min(writing.oldest, oldest)
        writing.ticks[workers] += 1
        actor.write(writing.rollout, steps)

    def cut(self, streams: Array, value: Array) -> None:
        """What those streams do next follows nothing; `value` is their estimate of what is lost."""
        self._open.rollout.cut(streams, value)

    def finish(self, actor: Actor) -> None:
        """Let what is whole wait to be taken."""
        writing = self._open
        if writing.ticks.max() >= self._spec.ticks:
            writing.slot.commit(actor.close_rollout(writing.rollout), writing.oldest)
            self._writing = None

    def oldest(self) -> tuple[dict[str, Array] | None, bool]:
        """The columns of what waits longest, and whether they follow nothing."""
        if not self._rollouts.ring.ready():
            return None, False
        columns = self._rollouts.take_columns()
        self._rollouts.ring.release()
        return columns, False

    def close(self) -> None:
        self._writing = None
        self._rollouts.ring.close()

    @property
    def _open(self) -> _Writing:
        assert self._writing is not None  # has_room said so
        return self._writing


class StepBlockBuffer:
    """For algorithms with replay."""

    def __init__(self, spec: ActorSpec, workers: int) -> None:
        self._spec = spec
        ring = spec.open_ring()
        assert isinstance(ring, StepBlockRing)
        self._blocks = ring
        self._held: list[Steps] = []
        self._version = 0
        self._counted = (0, 0)  # ticks of games and games that were handed over
        self._broken: deque[bool] = deque()  # of the blocks that wait, which the ring bounds
        self._follows = False  # what is held, what was handed over
        self._cut = False  # what is held ends here

    def has_room(self, actor: Actor, version: int) -> bool:
        return self._blocks.ring.room()

    def add(self, actor: Actor, steps: Steps, workers: Array, oldest: int) -> None:
        self._version = min(self._version, oldest) if self._held else oldest
        self._held.append(actor.in_frames(steps))

    def cut(self, streams: Array, value: Array) -> None:
        self._cut = True

    def finish(self, actor: Actor) -> None:
        if len(self._held) < self._spec.ticks and not self._cut:
            return
        if any(map(len, self._held)):
            self._hand_over(actor)
            self._follows = True
        self._follows = self._follows and not self._cut
        self._held, self._cut = [], False

    def oldest(self) -> tuple[dict[str, Array] | None, bool]:
        if not self._blocks.ring.ready():
            return None, False
        columns = self._blocks.take_columns()
        self._blocks.ring.release()
        return columns, self._broken.popleft()

    def close(self) -> None:
        self._blocks.ring.close()

    def _hand_over(self, actor: Actor) -> None:
        env_steps, games = self._counted
        self._blocks.write(
            self._held,
            actor.ended(),
            version=self._version,
            env_steps=actor.env_steps - env_steps,
            games=actor.episodes - games,
        )
        self._broken.append(not self._follows)
        self._counted = (actor.env_steps, actor.episodes)


InferenceBuffer = RolloutBuffer | StepBlockBuffer
